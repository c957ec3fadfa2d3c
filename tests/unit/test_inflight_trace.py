"""A trace is read in whatever way a loop wrote its times, and what is no trace is refused with its line."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.errors import UsageError
from dsv4ctl.inflight.recording import read_recording
from dsv4ctl.inflight.trace import read_trace

BEGAN = datetime(2026, 11, 29, 23, 59, 50, tzinfo=UTC)
SERIES = 'sglang:num_prefill_inflight_queue_reqs{engine_type="prefill",model_name="a b"}'
WAYS: dict[str, Callable[[datetime], str]] = {
    "seconds": lambda at: f"{at.timestamp():.3f}",
    "since the start": lambda at: f"{(at - BEGAN).total_seconds()}",
    "milliseconds": lambda at: str(round(at.timestamp() * 1e3)),
    "nanoseconds": lambda at: f"{at.timestamp():.0f}000000000",
    "a clock": lambda at: at.strftime("%H:%M:%S"),
    "a date": lambda at: at.strftime("%Y-%m-%d %H:%M:%S"),
    "ISO 8601": lambda at: at.isoformat(),
    "Z": lambda at: at.strftime("%Y-%m-%dT%H:%M:%SZ"),
    "what date prints": lambda at: at.strftime("%a %b %d %H:%M:%S CET %Y"),
}

LINES = ("{time} {value}", "{time}\t{value}  # looked at", "{time},{value}", "{time} SERIES {value}.0")


def read(text: str) -> list[tuple[float, int]]:
    return [(sample.at_s, sample.queues[0].count) for sample in read_trace(Path("trace"), text.splitlines())]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("line", LINES)
def test_times_are_understood_over_midnight(way: str, line: str) -> None:
    steps = (0, 5, 10, 25)
    lines = [line.format(time=WAYS[way](BEGAN + timedelta(seconds=step)), value=step % 3) for step in steps]
    text = "\r\n".join(lines).replace("SERIES", SERIES)
    found = read(f"\ufeff# a trace\r\n\r\n{text}")
    assert [at_s for at_s, _ in found] == pytest.approx(steps)
    assert [count for _, count in found] == [step % 3 for step in steps]


def test_days_between_two_lines_are_days() -> None:
    assert read("2026-11-29T10:00:00 1\n2026-12-05T10:00:05 0")[1] == (6 * 86400 + 5, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("25:61:99 1", "'25:61:99' is no time"),
        ("10:00:60 1", "is no time"),
        ("nan 1", "is no time"),
        ("1e400 1", "is no time"),
        ("14:00:00 NaN", "NaN is no number of requests"),
        ("14:00:00 inf", "inf is no number of requests"),
        ("14:00:00 -1", "-1 is no number of requests"),
        ("14:00:00 0.5", "0.5 is no number of requests"),
        ("14:00:00 1e30", "1e30 is no number of requests"),
        ("14:00:00", "one word"),
        ("14:00:00 1 1", "'14:00:00 1' is no time"),
        (f"{SERIES} 1.0", "have the loop print"),
        ("sglang 1", "'sglang' is no time"),
    ],
)
def test_what_is_none_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(f"13:00:00 0\n{text}")
    assert "trace, line 2" in str(refused.value)
    assert says in (refused.value.why or "")


def test_a_time_that_goes_back_is_refused() -> None:
    with pytest.raises(UsageError, match="line 2: the time goes back"):
        read("10:00:05 1\n10:00:00 1")


@given(st.text(max_size=60))
def test_nonsense_is_read_or_refused(text: str) -> None:
    try:
        samples = read(text)
    except UsageError:
        return
    assert all(count >= 0 for _, count in samples)


@pytest.mark.parametrize("times", ['"at_s":1e400,"clock":5', '"at_s":1,"clock":1e20', '"at_s":1,"clock":-5'])
def test_a_recording_with_times_that_are_none_is_refused(times: str, tmp_path: Path) -> None:
    path = tmp_path / "watch.jsonl"
    header = (
        '{"kind":"dsv4ctl watch-inflight","schema_version":1,"target":"t","started_at":"","interval_s":1,"limits":{}}'
    )
    sample = '{"sample":{"worker":"p",%s}}'
    path.write_text("\n".join([header, sample % times, sample % '"at_s":2,"clock":6', ""]))
    with pytest.raises(UsageError, match="line 2: no sample of a watch"):
        read_recording(path)
