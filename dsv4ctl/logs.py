"""Printing the logs of a stack's workers, once or for ever."""

from contextlib import ExitStack

from dsv4ctl.console import Console, Output
from dsv4ctl.errors import UsageError
from dsv4ctl.fleet import Place
from dsv4ctl.hosts.base import FileLog
from dsv4ctl.printable import without_colours
from dsv4ctl.signals import Interrupts
from dsv4ctl.targets import Target

_TURN_S = 0.1
_LAST_LINE_WITHIN_S = 0.5


def _is_there(place: Place, log: FileLog) -> bool:
    return place.host.run(["test", "-e", log.path], deadline_s=10.0, check=False).returncode == 0


def print_logs(
    console: Console, target: Target, role: str | None, *, follow: bool, lines: int, interrupts: Interrupts
) -> None:
    """Print the last `lines` lines of every worker that `role` names, and with `follow` what comes after them.

    Raises:
        UsageError: `role` is no worker and no role of the stack.
        HostUnreachable, Interrupted
    """
    members = [(host, worker) for host, record in target.records for worker in record.workers]
    chosen = [(host, worker) for host, worker in members if role in (None, worker.name, worker.role)]
    if not chosen:
        names = ", ".join(dict.fromkeys(name for _, worker in members for name in (worker.role, worker.name)))
        raise UsageError(f"{target.name} has no worker or role {role}", hint=f"there are: {names}")
    with ExitStack() as exits:
        streams = []
        for host, worker in chosen:
            place = target.fleet[host]
            source = place.supervisor.log(worker.unit)
            if isinstance(source, FileLog) and not _is_there(place, source):
                console.warn(f"{worker.name} has no log on {host}: there is no {source.path}")
                continue
            stream = place.host.follow(source, tail_lines=lines)
            streams.append((worker.name, exits.enter_context(stream)))
        several = len(streams) > 1

        def show(name: str, line: str) -> None:
            if console.output is Output.JSONL:
                console.event({"worker": name, "line": line})
            elif not console.machine:
                text = without_colours(line)
                console.data(f"{name} | {text}" if several else text)
            shown.append({"worker": name, "line": line})

        shown: list[dict[str, str]] = []
        for name, stream in streams:
            count = 0
            while count < lines and (line := stream.readline(_LAST_LINE_WITHIN_S)) is not None:
                show(name, line)
                count += 1
        if not follow:
            console.result(None if console.output is Output.JSONL else shown)
            return
        while True:
            shown.clear()
            quiet = True
            for name, stream in streams:
                while (line := stream.readline(0.0)) is not None:
                    show(name, line)
                    quiet = False
            if quiet:
                interrupts.sleep(_TURN_S)
            interrupts.check()
