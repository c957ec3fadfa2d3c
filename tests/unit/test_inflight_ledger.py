"""The ledger against a model of it: whoever has been in the queue for too long is found, and nobody else."""

import random
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from serving.inflight.ledger import Ledger


@dataclass
class Known:
    """What the model knows of a request: when its clock started, None while it is parked."""

    started: float | None
    health_check: bool
    ended: bool = False


@given(seed=st.integers(0, 10_000), timeout=st.sampled_from([0.0, 0.5, 4.0, 120.0]))
def test_overdue_is_who_entered_longer_ago_than_the_timeout(seed: int, timeout: float) -> None:
    rng = random.Random(seed)
    ledger: Ledger[int] = Ledger()
    model: dict[int, Known] = {}
    now = 1000.0
    for key in range(60):
        now += rng.choice([0.0, 0.01, 0.4, 3.0])
        match rng.choice(["enter", "enter", "enter", "park", "start", "leave", "end", "again"]):
            case "enter":
                health_check = rng.random() < 0.2
                ledger.enter(key, now, health_check=health_check)
                model[key] = Known(now, health_check)
            case "park":
                ledger.enter(key, now, parked=True)
                model[key] = Known(None, health_check=False)
            case "start":
                for parked in ledger.parked()[:1]:
                    ledger.start(parked, now)
                    model[parked].started = now
            case "leave" if model:
                gone = rng.choice(list(model))
                assert ledger.leave(gone) is not None
                assert ledger.leave(gone) is None
                del model[gone]
            case "end":
                for found, entry in ledger.overdue(now, timeout)[:1]:
                    entry.ended_with = "over"
                    model[found].ended = True
            case "again" if model:
                ledger.enter(rng.choice(list(model)), now)
        expected = {
            key
            for key, known in model.items()
            if timeout and known.started is not None and not known.ended and now - known.started >= timeout
        }
        assert {key for key, _ in ledger.overdue(now, timeout)} == expected
        assert len(ledger) == len(model)
        clocks = {key: known.started for key, known in model.items() if known.started is not None}
        oldest = ledger.oldest()
        real = [start for key, start in clocks.items() if not model[key].health_check]
        assert (oldest[1].entered_s if oldest else None) == (min(real) if real else None)


def test_a_lease_ends_once_and_leaves_with_its_request() -> None:
    ledger: Ledger[str] = Ledger()
    ledger.enter("held", 10.0, lease_s=5.0)
    ledger.enter("free", 10.0)
    assert ledger.held() == 1
    assert not ledger.lease_ended(14.9)
    ((key, entry),) = ledger.lease_ended(15.0)
    assert key == "held"
    entry.ended_with = "its lease"
    assert not ledger.lease_ended(16.0)
    ledger.leave("held")
    assert ledger.held() == 0


def test_strangers_are_told_apart() -> None:
    ledger: Ledger[str] = Ledger()
    ledger.enter("both", 1.0)
    ledger.enter("gone", 1.0, parked=True)
    assert ledger.strangers(["new", "both"]) == (["new"], ["gone"])
