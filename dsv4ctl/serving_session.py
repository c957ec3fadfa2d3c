"""One run of `dsv4ctl serve`: the plan, the launch, and the watch in the foreground."""

import random
import shlex
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from dsv4ctl.console import Console
from dsv4ctl.errors import Dsv4Error, HostUnreachable, Interrupted, NothingRunning, UsageError
from dsv4ctl.fleet import Fleet, open_fleet
from dsv4ctl.hosts.connect import open_host
from dsv4ctl.knobs import lint_on
from dsv4ctl.launch import CLEAN_UP_GRACE_S, Launch, Launched, end_stack, launch
from dsv4ctl.live import LiveView
from dsv4ctl.locks import hold_lock
from dsv4ctl.profile.here import load_here
from dsv4ctl.profile.loading import LoadedProfile
from dsv4ctl.restart.pending import PendingStore
from dsv4ctl.serve_plan import plan_as_data, script_of, serve_plan, unresolved
from dsv4ctl.signals import interruptible
from dsv4ctl.stack import Stack, build_stack
from dsv4ctl.state import StackRecord

_WATCH_EVERY_S = 1.0
_OTHER_STOP_WITHIN_S = 60.0


def _checked_stack(console: Console, loaded: LoadedProfile, fleet: Fleet) -> Stack:
    """The stack of a profile whose names were checked against the engine of every host.

    Raises:
        ProfileError: a variable or flag that the engine would ignore or refuse.
    """
    linted = lint_on(
        loaded,
        {name: place.host for name, place in fleet.items()},
        {name: place.site.python for name, place in fleet.items()},
    )
    for note in linted.notes:
        console.warn(note)
    for finding in linted.findings:
        console.finding(finding)
    linted.raise_problems()
    return build_stack(loaded, {name: place.site for name, place in fleet.items()})


def _tell_unresolved(console: Console, stack: Stack) -> None:
    for sentence in unresolved(stack):
        console.warn(f"{sentence}. It stands in the plan as it is; `serve` would refuse to start")


def print_plan(console: Console, ref: str | None, sets: Sequence[str]) -> None:
    """The very plan that `serve` would carry out, and the lines a person can paste. Nothing is written."""
    loaded = load_here(ref, sets)
    console.target = loaded.profile.name
    with open_fleet(loaded.profile, open_host) as fleet:
        stack = _checked_stack(console, loaded, fleet)
    _tell_unresolved(console, stack)
    steps = serve_plan(stack, loaded.profile.canary)
    if not console.machine:
        console.data(script_of(stack))
        for number, step in enumerate(steps, 1):
            console.say(f"{number:>3}. {step.title}  (on {step.host}, within {step.deadline_s:g} s)")
    console.result(plan_as_data(stack, steps))


def emit_units(console: Console, ref: str | None, sets: Sequence[str], *, kind: str, directory: str) -> None:
    """Write systemd unit files for the stack.

    Raises:
        UsageError: `kind` is not systemd, or the directory cannot be written.
    """
    if not directory or directory.startswith("-"):
        raise UsageError(f"--emit {kind} {directory}: the second word must be a directory", hint="--emit systemd DIR")
    if kind != "systemd":
        raise UsageError(f"--emit {kind} {directory}: only systemd can be emitted", hint="--emit systemd DIR")
    from dsv4ctl.emit import write_units

    loaded = load_here(ref, sets)
    console.target = loaded.profile.name
    with open_fleet(loaded.profile, open_host) as fleet:
        stack = _checked_stack(console, loaded, fleet)
    _tell_unresolved(console, stack)
    written = write_units(stack, Path(directory))
    if not console.machine:
        for path in written:
            console.data(str(path))
        for model in stack.models:
            if model.make is not None:
                console.say(f"before the first start, on {model.host}: {shlex.join(model.make)}")
    console.result({"written": [str(path) for path in written]})


def run_serve(console: Console, ref: str | None, sets: Sequence[str], *, detach: bool) -> None:
    """Launch the stack; in the foreground, watch it until Ctrl-C and end it then.

    Raises:
        Dsv4Error: it did not come up, or a worker ended.
        Interrupted: Ctrl-C; the stack was ended.
    """
    began = time.monotonic()
    loaded = load_here(ref, sets)
    console.target = loaded.profile.name
    with interruptible() as interrupts, open_fleet(loaded.profile, open_host) as fleet, LiveView(console) as view:
        work = Launch(
            loaded=loaded,
            stack=_checked_stack(console, loaded, fleet),
            fleet=fleet,
            interrupts=interrupts,
            report=view.report,
            on_look=view.look,
            on_finding=console.finding,
            on_trouble=console.warn,
            rng=random.SystemRandom(),
        )
        launched = launch(work)
        with launched.serving.watch:
            url = work.stack.entry.url
            seconds = time.monotonic() - began
            view.say(f"ready after {seconds:.1f} s: {url}/v1/chat/completions (model {work.stack.served_model})")
            ready = {
                "stack": work.stack.name,
                "url": url,
                "model": work.stack.served_model,
                "seconds": round(seconds, 3),
                "steps": [
                    {
                        "id": timed.step.id,
                        "state": timed.state,
                        "seconds": round(timed.seconds, 3),
                        "facts": timed.facts,
                    }
                    for timed in launched.timeline
                ],
            }
            if detach:
                console.result(ready)
                return
            console.event({"ready": ready})
            _stay(work, launched, view)


def _stay(work: Launch, launched: Launched, view: LiveView) -> None:
    """Watch until Ctrl-C or a death, then end the stack."""
    view.say("Ctrl-C ends the stack")
    try:
        _watch(work, launched, view)
    except BaseException as error:
        try:
            _end(work, launched, 0.0 if isinstance(error, KeyboardInterrupt) else CLEAN_UP_GRACE_S)
        except KeyboardInterrupt:
            _end(work, launched, 0.0)
        view.look(())
        if isinstance(error, Interrupted):
            raise Interrupted(f"{error.what}: stack {work.stack.name} was ended, nothing of it is left") from error
        raise


def _watch(work: Launch, launched: Launched, view: LiveView) -> None:
    lost = restarting = False
    while True:
        work.interrupts.sleep(_WATCH_EVERY_S)
        try:
            launched.serving.look()
        except HostUnreachable as error:
            if not lost:
                view.say(f"cannot look: {error}. The stack is not touched; trying again")
            lost = True
        except Dsv4Error:
            if _is_being_restarted(work):
                if not restarting:
                    view.say(
                        "a co-restart is under way: the stack is not touched, and watched again when that has ended"
                    )
                restarting = True
                continue
            if _ended_by_another(work):
                raise NothingRunning(f"stack {work.stack.name} was ended by another dsv4ctl") from None
            if not launched.serving.adopt(_records(work)):
                raise
            view.say("the stack was restarted by another dsv4ctl: its new workers are watched")
            restarting = False
        else:
            if lost:
                view.say("the host answers again")
            lost = False


def _is_being_restarted(work: Launch) -> bool:
    """Whether a co-restart has been begun and has not ended: what is missing then is missing on purpose."""
    return any(PendingStore(place, work.stack.name).load() is not None for place in work.fleet.values())


def _records(work: Launch) -> dict[str, StackRecord]:
    loaded = {name: place.store.load(work.stack.name) for name, place in work.fleet.items()}
    return {name: record for name, record in loaded.items() if record is not None}


def _ended_by_another(work: Launch) -> bool:
    """Whether the stack has no record any more, once whoever is at work on it has finished."""
    with ExitStack() as locks:
        for place in work.fleet.values():
            path = place.store.lock_path(work.stack.name)
            locks.enter_context(hold_lock(place.host, path, "look", wait_s=_OTHER_STOP_WITHIN_S))
        return all(place.store.load(work.stack.name) is None for place in work.fleet.values())


def _end(work: Launch, launched: Launched, grace_s: float) -> None:
    work.interrupts.acknowledge()
    launched.serving.watch.close()
    with ExitStack() as locks:
        for place in work.fleet.values():
            path = place.store.lock_path(work.stack.name)
            locks.enter_context(hold_lock(place.host, path, "stop", wait_s=_OTHER_STOP_WITHIN_S))
        records = tuple(_records(work).items())
        if records:
            end_stack(
                work.fleet,
                records,
                grace_s=grace_s,
                report=work.report,
                interrupts=work.interrupts,
                on_trouble=work.on_trouble,
            )
