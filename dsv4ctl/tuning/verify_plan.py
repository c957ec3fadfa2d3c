"""The steps of `tune-timeout --verify`: shorten the timeout, pin a canary, see it ended, put all back. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4ctl.plan import Step
from dsv4ctl.timers import TICK_S

ENTERS_WITHIN_S = 30.0
CLEAN_WITHIN_S = 20.0
_ANSWER_S = 5.0
_CONTROL_WITHIN_S = 60.0
_LOG_WITHIN_S = 20.0


@dataclass(frozen=True)
class Proof:
    """What is to be proven: of these prefill workers (name, host), with this timeout. `changes`: it is not in force."""

    workers: Sequence[tuple[str, str]]
    entry: str
    timeout_s: float
    changes: bool

    @property
    def fires_within_s(self) -> float:
        """From when a canary is in the queue until its client has its answer, at most."""
        return self.timeout_s + TICK_S

    @property
    def lease_s(self) -> float:
        """How long the engines keep it when nobody ends that: all steps that need it, at their limits."""
        return ENTERS_WITHIN_S + self.fires_within_s + _ANSWER_S + _CONTROL_WITHIN_S / 2

    @property
    def hold_s(self) -> int:
        """How long a canary asks to be held: until the watchdog must have ended it."""
        return int(self.fires_within_s + ENTERS_WITHIN_S) + 1


def verify_plan(proof: Proof) -> tuple[Step, ...]:
    """Every step, in order; what was shortened is put back by the last ones, and after any other end too."""
    entry, timeout_s = proof.entry, proof.timeout_s
    names = ", ".join(name for name, _ in proof.workers)
    steps = []
    if proof.changes:
        steps += [
            Step(
                f"shorten:{name}",
                f"have {name} use {timeout_s:g} s, on a lease of {proof.lease_s:.0f} s",
                host,
                _CONTROL_WITHIN_S,
            )
            for name, host in proof.workers
        ]
    steps += [
        Step("enters", f"a canary that is held enters the inflight queue of {names}", entry, ENTERS_WITHIN_S),
        Step(
            "fires", f"the watchdog ends it within {proof.fires_within_s:g} s", entry, proof.fires_within_s + _ANSWER_S
        ),
        Step("answer", "its client is told why", entry, _ANSWER_S),
        Step(
            "clean", "prefill's queue and decode are without it, and no other request was ended", entry, CLEAN_WITHIN_S
        ),
    ]
    steps += [
        Step(f"told:{name}", f"the log and the counter of {name} have it", host, _LOG_WITHIN_S)
        for name, host in proof.workers
    ]
    if proof.changes:
        steps += [
            Step(f"restore:{name}", f"{name} uses what it used before", host, _CONTROL_WITHIN_S)
            for name, host in proof.workers
        ]
    return tuple(steps)
