"""What a restart changes: every variable and flag of a worker that will be another than it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsv4ctl.drift import planned_tail
from dsv4ctl.redaction import redact_argv, redact_env
from dsv4ctl.restart.running import Running
from dsv4ctl.stack import Worker


@dataclass(frozen=True)
class Change:
    """One variable (`NAME`) or flag (`--flag`) of a worker; None: not set. Secrets are fingerprints."""

    worker: str
    what: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        return f"{self.what}: {_shown(self.before)} -> {_shown(self.after)}"


def changes_of(running: Sequence[Running], workers: Sequence[Worker]) -> tuple[Change, ...]:
    """What runs now, or was recorded where nothing runs, against what `workers` will be started with."""
    before = {one.name: one for one in running}
    found: list[Change] = []
    for worker in workers:
        was = before.get(worker.name)
        if was is None:
            continue
        recorded = was.record.env
        # A process inherits PATH and its like: only what was planned, or is planned now, is compared.
        names = recorded.keys() | worker.env.keys()
        env = redact_env(recorded if was.environ is None else _of(names, was.environ))
        found += _differences(worker.name, env, redact_env(worker.env))
        argv = redact_argv(was.argv or planned_tail(was.record.argv))
        found += _differences(worker.name, _flags(argv), _flags(planned_tail(redact_argv(worker.argv))))
    return tuple(found)


def _of(names: Sequence[str] | set[str], environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in names if name in environ}


def _differences(worker: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    names = sorted(before.keys() | after.keys())
    return [
        Change(worker, name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    ]


def _flags(argv: Sequence[str]) -> dict[str, str]:
    """Flags with the words behind them; what stands before the first flag is the program, under an empty name."""
    found: dict[str, str] = {}
    name, words = "", list[str]()
    for word in argv[1:]:
        if word.startswith("--"):
            found[name] = " ".join(words)
            name, _, value = word.partition("=")
            words = [value] if value else []
        else:
            words.append(word)
    found[name] = " ".join(words)
    return {name or "program": text for name, text in found.items()}


def _shown(value: str | None) -> str:
    if value is None:
        return "not set"
    return value or '""'
