"""`serve --emit systemd DIR`: the stack as unit files, for a machine where systemd itself keeps it."""

from collections.abc import Iterable
from pathlib import Path

from dsv4ctl.errors import UsageError
from dsv4ctl.redaction import redact, redact_argv
from dsv4ctl.stack import Stack, Worker
from dsv4ctl.supervisors.base import UnitSpec
from dsv4ctl.supervisors.unitfile import environment_file, render_target, render_unit

_PUBLIC, _PRIVATE = 0o644, 0o600


def write_units(stack: Stack, directory: Path) -> tuple[Path, ...]:
    """Write a service for each worker and a target that groups them; one folder a host when there are several.

    Variables that hold secrets go to a file of mode 0600 beside the unit, which everyone may read.

    Returns:
        The files written, in the order of the stack.

    Raises:
        UsageError: the directory cannot be written.
        OperationFailed: something in the plan cannot be said in a unit file.
    """
    written: list[Path] = []
    for host in stack.hosts:
        folder = directory if len(stack.hosts) == 1 else directory / host
        written += _write_host(stack, stack.on(host), folder.absolute())
    return tuple(written)


def _write_host(stack: Stack, workers: Iterable[Worker], folder: Path) -> list[Path]:
    target = f"dsv4-{stack.name}.target"
    written: list[Path] = []
    services: list[str] = []
    for worker in workers:
        secrets = {name: value for name, value in worker.env.items() if redact(name, value) != value}
        secrets_file = folder / f"{worker.unit}.env"
        if secrets:
            written.append(_write(secrets_file, environment_file(secrets), _PRIVATE))
        # Nobody would make or remove a temporary directory of ours there: the unit uses the system's.
        public = {name: value for name, value in worker.env.items() if name not in secrets and name != "TMPDIR"}
        spec = UnitSpec(worker.unit, worker.argv, public)
        text = render_unit(
            spec,
            description=f"{worker.name} of the {stack.name} stack",
            # UCX agents that initialise at the same moment have hung: what starts later waits for what starts first.
            after=tuple(services) if stack.staggered else (),
            target=target,
            secrets_file=str(secrets_file) if secrets else None,
        )
        mode = _PUBLIC if redact_argv(worker.argv) == worker.argv else _PRIVATE
        written.append(_write(folder / f"{worker.unit}.service", text, mode))
        services.append(f"{worker.unit}.service")
    text = render_target(services, description=f"the {stack.name} stack")
    written.append(_write(folder / target, text, _PUBLIC))
    return written


def _write(path: Path, text: str, mode: int) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=mode)
        path.chmod(mode)
        path.write_text(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written", why=error.strerror) from error
    return path
