"""The steps of `tune-timeout --apply`: on a lease first, so that nobody is needed to take it back. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsv4ctl.plan import Step
from dsv4ctl.tuning.fires import allowed_fires

LEASE_MARGIN_S = 60.0
_CONTROL_WITHIN_S = 60.0
_FILE_WITHIN_S = 20.0


@dataclass(frozen=True)
class Change:
    """What is to be: `before_s` is what each prefill worker (by name; `hosts` says where) has. `expected_per_s`: fires
    of the watchdog that the evidence does not exclude, over all workers. `file`: the profile's, where it is written."""

    timeout_s: float
    before_s: Mapping[str, float]
    hosts: Mapping[str, str]
    entry: str
    soak_s: float
    expected_per_s: float
    file: str | None

    @property
    def workers(self) -> Sequence[str]:
        """Those that have another timeout now."""
        return [worker for worker, before_s in self.before_s.items() if before_s != self.timeout_s]

    @property
    def expected(self) -> float:
        """Fires that the evidence does not exclude while it is watched."""
        return self.expected_per_s * self.soak_s

    @property
    def allowed(self) -> int:
        """More than so many take it back."""
        return allowed_fires(self.expected)

    @property
    def lease_s(self) -> float:
        """How long the engines have it without anybody who makes it last."""
        return self.soak_s + LEASE_MARGIN_S


def apply_plan(change: Change) -> tuple[Step, ...]:
    """Every step, in order."""
    timeout_s = change.timeout_s
    steps = []
    if change.soak_s and change.workers:
        steps += [
            Step(
                f"lease:{worker}",
                f"have {worker} use {timeout_s:g} s, on a lease of {change.lease_s:.0f} s",
                change.hosts[worker],
                _CONTROL_WITHIN_S,
            )
            for worker in change.workers
        ]
        words = f"watch for {change.soak_s:g} s: more than {change.allowed} fires of the watchdog take it back"
        steps.append(Step("soak", words, change.entry, change.soak_s + _CONTROL_WITHIN_S))
    steps.append(Step("remember", "write down what was there before", change.entry, _FILE_WITHIN_S))
    steps += [
        Step(f"keep:{worker}", f"have {worker} use {timeout_s:g} s for good", change.hosts[worker], _CONTROL_WITHIN_S)
        for worker in change.workers
    ]
    steps.append(Step("record", "write it down as what is planned", change.entry, _FILE_WITHIN_S))
    if change.file is not None:
        steps.append(Step("file", f"write it into {change.file}", change.entry, _FILE_WITHIN_S))
    return tuple(steps)
