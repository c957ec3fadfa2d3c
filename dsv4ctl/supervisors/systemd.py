"""The `systemd` supervisor: each unit is a transient service of the user's (or the system's) manager.

A unit's processes are those of its cgroup, which nothing can leave. Its identity is the manager's InvocationID of that
start. Output goes to the journal.
"""

import secrets
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from dsv4ctl.errors import DeadlineExceeded, OperationFailed
from dsv4ctl.hosts.base import Completed, Host, JournalLog
from dsv4ctl.procfs import USER_HZ, Process, parse_stats
from dsv4ctl.supervisors.base import UnitHandle, UnitSpec, UnitState, UnitStatus, check_unit_name
from dsv4ctl.supervisors.unitfile import command_line, environment_file
from dsv4ctl.waiting import wait_until

SLICE = "dsv4ctl.slice"
_DEADLINE_S = 30.0
_KILL_DEADLINE_S = 10.0
_KEPT = ("HOME", "PATH", "USER", "LANG", "XDG_RUNTIME_DIR")

# An ssh session without a login has no XDG_RUNTIME_DIR, though the manager may be there. $1 is --user or --system.
_PRELUDE = """
export LC_ALL=C XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-/run/user/$(id -u)}"
manager=$1 unit=$2 exit_file=$3
shift 3
properties() {
    systemctl "$manager" show "$unit" -p LoadState,Transient,Slice,ActiveState,InvocationID \\
        -p MainPID,ExecMainPID,ExecMainCode,ExecMainStatus,ControlGroup,EnvironmentFiles
}
invocation() { systemctl "$manager" show "$unit" -p InvocationID --value; }
"""

# Everything about a unit in one go, in five parts. The cgroup file system is mounted at one of three places.
_LOOK = """
cat /proc/sys/kernel/random/boot_id /proc/uptime && echo -- || exit
found=$(properties) || exit
echo "$found"; echo --
group=$(echo "$found" | sed -n 's/^ControlGroup=//p')
for root in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/systemd; do
    if [ -n "$group" ] && [ -e "$root$group/cgroup.procs" ]; then
        find "$root$group" -name cgroup.procs -exec cat {} + 2>/dev/null
        break
    fi
done
echo --
main=$(echo "$found" | sed -n 's/^MainPID=//p')
cat "/proc/$main/stat" 2>/dev/null
echo --
cat "$exit_file" 2>/dev/null
exit 0
"""

# A unit gets no more of the manager's environment than what `keep` names (UnsetEnvironment= goes over all the rest, and
# it would win over our own variables too). The environment file is gone as soon as the program has been exec'ed; the
# "-" before it lets systemd run ExecStopPost= without it.
_START = """
env_file=$1 keep=$2
shift 2
names=$(systemctl "$manager" show-environment | sed -n 's/^\\([A-Za-z_][A-Za-z0-9_]*\\)=.*/\\1/p')
drop=$(echo "$names" | grep -vxF "$keep" | tr '\\n' ' ')
systemctl "$manager" reset-failed "$unit" 2>/dev/null
systemd-run "$manager" --unit="$unit" -p UnsetEnvironment="$drop" -p EnvironmentFile="-$env_file" "$@"
status=$?
rm -f "$env_file"
exit $status
"""

# Only to the start that is meant: $1 is its InvocationID, $2 who of it, $3 the signal.
_SIGNAL = """
[ "$(invocation)" = "$1" ] || exit 0
systemctl "$manager" kill --kill-who="$2" --signal="$3" "$unit"
"""

_FORGET = """
[ "$(invocation)" = "$1" ] && systemctl "$manager" reset-failed "$unit"
[ "$(head -n1 "$exit_file" 2>/dev/null)" = "$1" ] && rm -f "$exit_file"
exit 0
"""

# systemd forgets a unit that ended well at once, with its exit status. So every unit leaves a note. Run by systemd.
_EXIT_NOTE = (
    'read -r boot </proc/sys/kernel/random/boot_id; printf "%s\\n" '
    '"$INVOCATION_ID" "$boot" "$EXIT_CODE" "$EXIT_STATUS" "$2" >"$1.new" && mv "$1.new" "$1"'
)

# systemd.exec(5), "Process Exit Codes": what went wrong before the program ran.
_SETUP_FAILED = {200: "its working directory cannot be entered", 203: "its program cannot be executed"}


@dataclass(frozen=True)
class _ExitNote:
    invocation_id: str
    boot_id: str
    exit_code: int | None
    env_file: str


@dataclass(frozen=True)
class _Look:
    """A unit as it is now. `properties` as `systemctl show` names them; all empty when no such unit is loaded."""

    boot_id: str
    uptime_s: float
    properties: Mapping[str, str]
    pids: tuple[int, ...]
    main: Process | None
    note: _ExitNote | None

    @property
    def loaded(self) -> bool:
        return self.properties["LoadState"] == "loaded"

    def is_start_with(self, env_file: str) -> bool:
        """Whether this is the start that was given that environment file, whose name is of one start only."""
        if self.loaded and self.properties.get("EnvironmentFiles", "").startswith(env_file):
            return True
        return self.note is not None and self.note.env_file == env_file

    @property
    def active(self) -> bool:
        """Something of it runs, or is being started or stopped."""
        return self.loaded and self.properties["ActiveState"] not in ("inactive", "failed")

    @property
    def setup_failed(self) -> str | None:
        """What kept the program from being run, if something did."""
        return _SETUP_FAILED.get(self.exit_code or 0) if self.loaded and not self.active else None

    @property
    def main_pid(self) -> int | None:
        return int(self.properties["MainPID"]) or None

    @property
    def exit_code(self) -> int | None:
        """Of the main process that ended, as subprocess has it. ExecMainCode is waitid's si_code: 1 is an exit."""
        status = int(self.properties["ExecMainStatus"])
        return {1: status, 2: -status, 3: -status}.get(int(self.properties["ExecMainCode"]))


class SystemdSupervisor:
    """Units as transient services in `dsv4ctl.slice`.

    The environment travels in a file of mode 0600 that is removed as soon as the worker has been exec'ed: what is given
    with `--setenv` can be read by everyone, in `systemctl show` and in the argv of systemd-run.

    KillMode is mixed: a person's `systemctl stop` sends SIGTERM to the worker alone, so that it can drain, and what is
    left when the worker has ended is killed.

    Args:
        host: where they run.
        state_dir: an absolute path on the host, for the environment files and the notes of how units ended.
        user: the user's own manager; False for the system's, which only root may ask.
        stop_timeout_s: how long `systemctl stop` waits for the worker before it kills.
    """

    def __init__(self, host: Host, state_dir: str, *, user: bool = True, stop_timeout_s: float = 60.0) -> None:
        self._host = host
        self._directory = PurePosixPath(state_dir) / "systemd"
        self._user = user
        self._stop_timeout_s = stop_timeout_s

    def start(self, spec: UnitSpec) -> UnitHandle:
        """Start a unit. When this returns, the worker's program has been exec'ed (Type=exec).

        Raises:
            OperationFailed: the program or its directory does not exist, the unit's name is in use (by a pid that is
                named), the environment cannot be given, no manager answers.
            HostUnreachable: the connection was lost. Whether the unit was started is then told by `find`.
        """
        check_unit_name(spec.name)
        env_file = str(self._directory / f"{spec.name}.{secrets.token_hex(8)}.env")
        self._host.write(env_file, environment_file(spec.env).encode())
        keep = "\n".join([*_KEPT, *spec.env])
        done = self._run(_START, spec.name, env_file, keep, *self._properties(spec, env_file))
        look = self._look(spec.name)
        # A worker that ended at once fails the start for systemd-run. For us it was started, and has ended.
        handle = self._handle(spec.name, look) if look.is_start_with(env_file) else None
        if handle is None or look.setup_failed:
            raise self._start_failure(spec, done, look)
        return handle

    def find(self, unit: str) -> UnitHandle | None:
        """The transient service of that name in our slice, or the one that last ended; else None."""
        return self._handle(unit, self._look(unit))

    def status(self, handle: UnitHandle) -> UnitStatus:
        """What the manager, the cgroup and the note of the end say now."""
        look = self._look(handle.unit)
        if look.boot_id != handle.boot_id:
            return UnitStatus(UnitState.REBOOTED, None, (), None, None)
        age_s = look.uptime_s - handle.start_ticks / USER_HZ if handle.start_ticks else None
        if look.loaded and look.properties["InvocationID"] == handle.invocation_id:
            if look.active and look.main_pid:
                return UnitStatus(UnitState.RUNNING, look.main_pid, look.pids, age_s, None)
            return UnitStatus(UnitState.EXITED, None, look.pids, age_s, look.exit_code)
        if look.note and look.note.invocation_id == handle.invocation_id:
            return UnitStatus(UnitState.EXITED, None, (), age_s, look.note.exit_code)
        return UnitStatus(UnitState.FOREIGN if look.active else UnitState.GONE, None, (), None, None)

    def terminate(self, handle: UnitHandle) -> None:
        """SIGTERM to the main process; returns at once. When it ends, systemd kills what it leaves behind."""
        if self.status(handle).state is UnitState.RUNNING:
            self._signal(handle, "main", "TERM")

    def kill(self, handle: UnitHandle) -> None:
        """SIGKILL to the unit's cgroup, and again to what it forked meanwhile, until nothing is left.

        Raises:
            OperationFailed: processes were left (named by pid): they hang in the kernel.
        """

        def emptied() -> bool:
            status = self.status(handle)
            if status.state is not UnitState.RUNNING and not status.pids:
                return True
            self._signal(handle, "all", "KILL")
            return False

        try:
            wait_until(emptied, deadline_s=_KILL_DEADLINE_S, what=f"the end of unit {handle.unit}", interval_s=0.2)
        except DeadlineExceeded as error:
            pids = ", ".join(str(pid) for pid in self.status(handle).pids)
            raise OperationFailed(
                f"unit {handle.unit} on {self._host.name} could not be killed",
                why=f"pid {pids} still there {_KILL_DEADLINE_S:g} s after SIGKILL: held in the kernel by a driver",
            ) from error

    def forget(self, handle: UnitHandle) -> None:
        """Make the manager forget an ended unit, and remove the note of its end. The journal stays.

        Raises:
            OperationFailed: something of the unit is alive.
        """
        status = self.status(handle)
        if status.state is UnitState.RUNNING or status.pids:
            pids = ", ".join(str(pid) for pid in status.pids)
            raise OperationFailed(f"cannot forget unit {handle.unit}", why=f"it is alive: pid {pids}")
        self._checked("forget", handle.unit, self._run(_FORGET, handle.unit, str(handle.invocation_id)))

    def log(self, unit: str, handle: UnitHandle | None = None) -> JournalLog:
        """The unit's journal, which has every start of that name; with `handle`, the part of that start."""
        return JournalLog(_service(unit), user=self._user, invocation=handle.invocation_id if handle else None)

    def _properties(self, spec: UnitSpec, env_file: str) -> list[str]:
        """The arguments of systemd-run that are not about the environment."""
        note = ["/bin/sh", "-c", _EXIT_NOTE, "sh", str(self._exit_file(spec.name)), env_file]
        properties = {
            "Description": f"dsv4ctl {spec.name}",
            "KillMode": "mixed",
            "TimeoutStopSec": f"{self._stop_timeout_s:g}",
            "StandardOutput": "journal",
            "StandardError": "journal",
            "LogRateLimitIntervalSec": "0",
            "ExecStopPost": command_line(note, specifiers=False),
        }
        if spec.cwd:
            properties["WorkingDirectory"] = spec.cwd
        settings = [f"--property={name}={value}" for name, value in properties.items()]
        # systemd expands `$` in the arguments of a transient unit as well, but takes the program as it stands.
        program, *arguments = spec.argv
        argv = [program, *(argument.replace("$", "$$") for argument in arguments)]
        return ["--quiet", "--service-type=exec", f"--slice={SLICE}", *settings, "--", *argv]

    def _start_failure(self, spec: UnitSpec, done: Completed, look: _Look) -> OperationFailed:
        """Why there is no unit of ours; removes what a failed start leaves behind."""
        why = _last_line(done)
        if look.setup_failed:
            why = look.setup_failed
            self._run(_FORGET, spec.name, look.properties["InvocationID"])
        elif look.loaded and look.properties["ActiveState"] != "failed":
            pids = ", ".join(str(pid) for pid in look.pids)
            why = f"pid {look.main_pid or pids} of an earlier start is alive" if pids else "it is just being started"
            return OperationFailed(f"unit {spec.name} is in use", why=why)
        return OperationFailed(f"cannot start unit {spec.name} on {self._host.name}", why=f"{why}: {spec.argv[0]}")

    def _handle(self, unit: str, look: _Look) -> UnitHandle | None:
        properties = look.properties
        if look.loaded and properties["Transient"] == "yes" and properties["Slice"] == SLICE:
            pid = int(properties["ExecMainPID"])
            ticks = look.main.start_ticks if look.main else 0
            return UnitHandle("systemd", unit, pid, ticks, look.boot_id, properties["InvocationID"])
        if look.note:
            return UnitHandle("systemd", unit, 0, 0, look.note.boot_id, look.note.invocation_id)
        return None

    def _signal(self, handle: UnitHandle, whom: str, name: str) -> None:
        done = self._run(_SIGNAL, handle.unit, str(handle.invocation_id), whom, name)
        # "No main process to kill", or no such unit: it ended while we were asking, which is no error.
        if done.returncode and self.status(handle).state is UnitState.RUNNING:
            self._checked(f"SIG{name} to", handle.unit, done)

    def _look(self, unit: str) -> _Look:
        done = self._checked("look at", unit, self._run(_LOOK, unit))
        boot, properties, pids, stat, note = done.text.split("--\n")
        boot_id, uptime, *_ = boot.split()
        return _Look(
            boot_id=boot_id,
            uptime_s=float(uptime),
            properties=dict(line.split("=", 1) for line in properties.splitlines()),
            pids=tuple(sorted(int(pid) for pid in pids.split())),
            main=next(iter(parse_stats(stat.encode()).values()), None),
            note=_exit_note(note),
        )

    def _exit_file(self, unit: str) -> PurePosixPath:
        return self._directory / f"{unit}.exit"

    def _run(self, script: str, unit: str, *arguments: str) -> Completed:
        manager = "--user" if self._user else "--system"
        argv = ["sh", "-c", _PRELUDE + script, "sh", manager, _service(unit), str(self._exit_file(unit)), *arguments]
        return self._host.run(argv, deadline_s=_DEADLINE_S, check=False)

    def _checked(self, what: str, unit: str, done: Completed) -> Completed:
        """The command, if it succeeded.

        Raises:
            OperationFailed: it did not; if so, with the way to get a manager that answers.
        """
        if done.returncode == 0:
            return done
        why = _last_line(done)
        if "connect to bus" in why or "not been booted with systemd" in why or "systemctl: not found" in why:
            raise self._no_manager(why)
        raise OperationFailed(f"cannot {what} unit {unit} on {self._host.name}", why=why)

    def _no_manager(self, why: str) -> OperationFailed:
        hint = "use the process supervisor"
        manager = "systemd"
        if self._user:
            who = self._host.run(["id", "-un"], deadline_s=_DEADLINE_S).text.strip()
            manager = f"systemd user manager of {who}"
            hint = f"`loginctl enable-linger {who}` keeps one running without a login; or {hint}"
        return OperationFailed(f"no {manager} answers on {self._host.name}", why=why, hint=hint)


def _service(unit: str) -> str:
    return f"{unit}.service"


def _last_line(done: Completed) -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"


def _exit_note(text: str) -> _ExitNote | None:
    """EXIT_CODE is exited, killed or dumped; EXIT_STATUS a number or the name of a signal (systemd.exec(5))."""
    if not text:
        return None
    invocation_id, boot_id, code, status, env_file = text.splitlines()
    if code == "exited":
        return _ExitNote(invocation_id, boot_id, int(status), env_file)
    number = getattr(signal, f"SIG{status}", None)
    return _ExitNote(invocation_id, boot_id, -int(number) if number else None, env_file)
