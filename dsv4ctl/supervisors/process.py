"""The `process` supervisor: each unit under a shepherd of its own (see `shepherd/`). Needs only a Python there."""

import hashlib
import io
import json
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

from dsv4ctl.errors import OperationFailed
from dsv4ctl.hosts.base import Completed, FileLog, Host
from dsv4ctl.supervisors.base import UnitHandle, UnitSpec, UnitState, UnitStatus, check_unit_name

_DEADLINE_S = 20.0
_KILL_DEADLINE_S = 10.0


class ProcessSupervisor:
    """Units as plain processes, kept by a shepherd process each.

    Args:
        host: where they run.
        state_dir: an absolute path on the host. Records go to `units/`, logs to `logs/` in it.
        python: the Python there that runs the shepherds, 3.8 or newer: `sys.executable` for this machine.
        grace_s: what a dead worker leaves behind gets SIGTERM, and SIGKILL this many seconds later.
        log_limit_bytes: a log that has grown past this is rotated while the worker runs.
        log_keep: how many older logs are kept.
    """

    def __init__(
        self,
        host: Host,
        state_dir: str,
        *,
        python: str = "python3",
        grace_s: float = 5.0,
        log_limit_bytes: int = 64 << 20,
        log_keep: int = 3,
    ) -> None:
        self._host = host
        self._state_dir = PurePosixPath(state_dir)
        self._python = python
        self._grace_s = grace_s
        self._log_limit_bytes = log_limit_bytes
        self._log_keep = log_keep
        self._program = program()
        digest = hashlib.sha256(self._program).hexdigest()[:16]
        self._program_path = str(self._state_dir / f"shepherd-{digest}.pyz")

    def start(self, spec: UnitSpec) -> UnitHandle:
        """Start a unit. When this returns, the worker's program has been exec'ed.

        Raises:
            OperationFailed: the program or its directory does not exist, the unit's name is in use by a living unit
                (named by pid), a log or record cannot be written, no usable Python there.
            HostUnreachable: the connection was lost. Whether the unit was started is then told by `find`.
        """
        check_unit_name(spec.name)
        reply = self._ask(
            "start",
            spec.name,
            argv=list(spec.argv),
            env=dict(spec.env),
            cwd=spec.cwd,
            log=self._log_path(spec.name),
            log_limit_bytes=self._log_limit_bytes,
            log_keep=self._log_keep,
            grace_s=self._grace_s,
        )
        return UnitHandle(supervisor="process", **reply)

    def find(self, unit: str) -> UnitHandle | None:
        """The last start of that name which this state directory has a record of, ended or not; else None."""
        try:
            # A look changes nothing on a host: the program is not sent there only to say that there is no record.
            self._host.read(str(self._state_dir / "units" / f"{unit}.json"), limit=1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        found = self._ask("find", unit)["found"]
        return UnitHandle(supervisor="process", **found) if found else None

    def status(self, handle: UnitHandle) -> UnitStatus:
        """What the kernel and the unit's record say now."""
        reply = self._ask("status", handle.unit, handle)
        return UnitStatus(
            state=UnitState(reply["state"]),
            main_pid=reply["main_pid"],
            pids=tuple(reply["pids"]),
            age_s=reply["age_s"],
            exit_code=reply["exit_code"],
        )

    def terminate(self, handle: UnitHandle) -> None:
        """SIGTERM to the worker; returns at once. When it ends, its shepherd ends what it leaves behind."""
        self._ask("terminate", handle.unit, handle)

    def kill(self, handle: UnitHandle) -> None:
        """SIGKILL to all of the unit, and again to what it forked meanwhile, until nothing is left.

        Raises:
            OperationFailed: processes were left (named by pid): they hang in the kernel.
        """
        left = self._ask("kill", handle.unit, handle, deadline_s=_KILL_DEADLINE_S)["left"]
        if left:
            pids = ", ".join(str(pid) for pid in left)
            raise OperationFailed(
                f"unit {handle.unit} on {self._host.name} could not be killed",
                why=f"pid {pids} still there {_KILL_DEADLINE_S:g} s after SIGKILL: held in the kernel by a driver",
            )

    def forget(self, handle: UnitHandle) -> None:
        """Remove the record of an ended unit. Logs stay.

        Raises:
            OperationFailed: something of the unit is alive.
        """
        self._ask("forget", handle.unit, handle)

    def log(self, unit: str, handle: UnitHandle | None = None) -> FileLog:  # noqa: ARG002
        """The file that the worker's stdout and stderr are appended to. It stays when the unit is forgotten, and the
        next start puts it aside."""
        return FileLog(self._log_path(unit))

    def _log_path(self, unit: str) -> str:
        return str(self._state_dir / "logs" / f"{unit}.log")

    def _ask(self, command: str, unit: str, handle: UnitHandle | None = None, **more: object) -> dict[str, Any]:
        """Run a command of the shepherd's program on the host, which gets the program first if it lacks it."""
        request: dict[str, object] = {"state_dir": str(self._state_dir), "unit": unit, **more}
        if handle:
            request |= {"pid": handle.pid, "start_ticks": handle.start_ticks, "boot_id": handle.boot_id}
        done = self._run(command, request)
        if done.returncode and self._program_path.encode() in done.stderr:
            self._host.write(self._program_path, self._program)
            done = self._run(command, request)
        what = f"{command} of unit {unit} on {self._host.name} failed"
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise OperationFailed(what, why=lines[-1] if lines else f"{self._python} ended with {done.returncode}")
        reply: dict[str, Any] = json.loads(done.stdout)
        if error := reply.get("error"):
            raise OperationFailed(error["what"] or what, why=error["why"])
        return reply

    def _run(self, command: str, request: dict[str, object]) -> Completed:
        # -I and -S: neither the person's environment nor what is installed there can change what runs.
        argv = [self._python, "-I", "-S", self._program_path, command]
        return self._host.run(argv, deadline_s=_DEADLINE_S, stdin=json.dumps(request).encode(), check=False)


def program() -> bytes:
    """The shepherd's package as a zip file that Python can run. The same sources give the same bytes."""
    package = Path(__file__).with_name("shepherd")
    sources = {f"shepherd/{path.name}": path.read_bytes() for path in sorted(package.glob("*.py"))}
    sources["__main__.py"] = b"from shepherd.commands import main\n\nmain()\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in sources.items():
            archive.writestr(zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0)), source)
    return buffer.getvalue()
