"""The alerts of docs/metrics.md say what they are meant to say of an engine's figures."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def expression(alert: str) -> str:
    """What an alert of the page looks at, on one line."""
    found = re.search(rf"- alert: {alert}\b.*\n\s+expr: (.*)\n", PAGE.read_text())
    assert found is not None
    return found[1]


def fires(alert: str, **figures: float) -> bool:
    """Whether it does with these figures of one engine."""
    return bool(eval(expression(alert), {"__builtins__": {}}, figures))


def figures(oldest_age_s: float, since_progress_s: float) -> dict[str, float]:
    return {
        "dsv4_inflight_oldest_age_seconds": oldest_age_s,
        "dsv4_inflight_since_progress_seconds": since_progress_s,
    }


def test_one_request_that_is_stuck_shows_also_where_others_come_and_go() -> None:
    assert fires("PrefillPinned", **figures(oldest_age_s=40.0, since_progress_s=0.01))
    assert fires("PrefillPinned", **figures(oldest_age_s=40.0, since_progress_s=40.0))


def test_a_queue_in_which_nothing_is_old_is_well() -> None:
    assert not fires("PrefillPinned", **figures(oldest_age_s=0.0, since_progress_s=0.0))
    assert not fires("PrefillPinned", **figures(oldest_age_s=5.0, since_progress_s=0.1))
