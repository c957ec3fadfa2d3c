"""Which part carries a step of a restart out."""

from dataclasses import dataclass

from dsv4ctl.plan import Action, Facts, Step
from dsv4ctl.restart.ending import ENDING, QUIET, Ending, Quiet
from dsv4ctl.restart.proving import PROVING, Proving
from dsv4ctl.restart.restarting import Restarting
from dsv4ctl.serve import Serving


@dataclass(frozen=True)
class _Serve:
    """Starting, awaiting and reading back a worker: as `serve` does it."""

    restarting: Restarting
    step: Step
    kept: bool

    def already(self) -> str | None:
        if self.kept:
            return "it was started by this restart, before that was cut off"
        if self.step.id.startswith("model:"):
            return self._action().already()
        return None

    def run(self) -> Facts:
        if self.step.id.startswith("start:"):
            self.restarting.mark(self.step, "starting")
        return self._action().run()

    def _action(self) -> Action:
        restarting = self.restarting
        if self.step.id.startswith("model:"):
            # Nothing has been ended, so there is nothing to begin.
            return Serving(restarting.context).action_for(self.step)
        return restarting.serving.action_for(self.step)


def action_for(restarting: Restarting, step: Step) -> Action:
    """How a step of `co_restart_plan` is carried out."""
    kind, _, name = step.id.partition(":")
    if kind in QUIET:
        return Quiet(restarting, step)
    if kind in ENDING:
        return Ending(restarting, restarting.fleet[step.host], kind, step)
    if kind in PROVING:
        return Proving(restarting, step)
    return _Serve(restarting, step, kept=kind == "start" and name in restarting.context.kept)
