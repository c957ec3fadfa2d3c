"""tune-timeout on the running engine: with too little evidence it says what is missing, and names no number."""

import pytest

from tests.engine import Dsv4, StackProfile
from tests.held import Pair

pytestmark = pytest.mark.stack


def test_with_too_little_it_says_how_much_is_missing_and_names_no_number(dsv4: Dsv4, shared: StackProfile) -> None:
    done = dsv4.run("tune-timeout", shared.path, "--window", "12", "-o", "json")
    assert done.code == 5, done.err
    result = done.document["result"]
    assert (result["bound"], result["recommended"]) == (None, None)
    assert result["why_no_bound"]["missing"] > 0
    assert {timer["letter"] for timer in result["timers"]} == {"H", "T", "S", "W", "B", "R"}
    # Decode's own heartbeat of 2 s is set after its process was started, where nobody sees it from outside.
    told = {timer["letter"]: (timer["source"], timer["seconds"]) for timer in result["timers"]}
    assert {letter: told[letter] for letter in "HTWB"} == {
        "H": ("engine", 4.0),
        "T": ("engine", 60.0),
        "W": ("engine", 300.0),
        "B": ("engine", 300.0),
    }
    assert {told[letter][0] for letter in "SR"} == {"process"}


def test_a_timeout_that_was_changed_on_the_running_engine_is_drift(dsv4: Dsv4, shared: StackProfile) -> None:
    pair = Pair.of(shared)
    assert pair.set_timeout(15)
    try:
        changed = dsv4.run("status", shared.path, "-o", "json")
    finally:
        assert pair.set_timeout(60)
    (finding,) = changed.document["findings"]
    assert (finding["code"], finding["evidence"]["planned"], finding["evidence"]["running"]) == (
        "CONFIG_DRIFT",
        "60",
        "15",
    )
    assert dsv4.run("status", shared.path, "-o", "json").document["findings"] == []
