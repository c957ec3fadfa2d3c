"""What the caller can ask for: start, find, status, terminate, kill, forget. One command a run."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from .keeper import Keeper
from .logfile import complain
from .processes import age_s, boot_id, is_alive, kill_all, look, send, wait_for
from .records import Failure, Record, Records

if TYPE_CHECKING:
    from collections.abc import Callable

# A worker's end is recorded within milliseconds; a shepherd that has been stopped never does.
RECORD_DEADLINE_S = 2.0


def main() -> None:
    """Run the command that argv names. The reply has a key `error` when it failed."""
    request = json.load(sys.stdin)
    records = Records(request["state_dir"])
    command = COMMANDS[sys.argv[1]]
    json.dump(_answer(lambda: command(request, records)), sys.stdout)


def _answer(command: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What the command returns, or its failure as a reply."""
    try:
        return command()
    except Failure as error:
        return {"error": {"what": error.what, "why": error.why}}
    except OSError as error:
        why = f"{error.strerror}: {error.filename}" if error.filename else str(error)
        return {"error": {"what": None, "why": why}}


def start(request: dict[str, Any], records: Records) -> dict[str, Any]:
    """Fork the shepherd, and report what it says about the start."""
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.close(read_end)
        _be_shepherd(request, records, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        reply = pipe.read()
    if not reply:
        raise Failure(f"cannot start unit {request['unit']}", "its shepherd died; its log may say why")
    decoded: dict[str, Any] = json.loads(reply)
    return decoded


def _be_shepherd(request: dict[str, Any], records: Records, report_to: int) -> NoReturn:
    """The life of the shepherd, in the forked child."""
    status = 1
    try:
        os.chdir("/")
        keeper = Keeper(request, records)
        reply = _answer(lambda: _identity(keeper.start()))
        # The standard streams are the caller's, who waits for their end. After a start, 1 and 2 are the log already.
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2) if "error" in reply else (0,):
            os.dup2(nowhere, stream)
        heard = _report(reply, report_to)
        if "error" not in reply:
            if heard:
                keeper.watch()
            else:
                complain("whoever asked for this start is gone: ending it")
                keeper.abandon()
        status = 0
    except BaseException:  # noqa: BLE001 (the outermost boundary of this process)
        traceback.print_exc()
    finally:
        os._exit(status)


def _report(reply: dict[str, Any], report_to: int) -> bool:
    """Whether somebody was there to be told. A unit that nobody knows of would belong to nobody."""
    try:
        os.write(report_to, json.dumps(reply).encode())
    except BrokenPipeError:
        return False
    finally:
        os.close(report_to)
    return True


def status(request: dict[str, Any], records: Records) -> dict[str, Any]:
    """State, main pid, pids, age and exit code of a start, as the kernel and the record have it now."""
    if request["boot_id"] != boot_id():
        return _state("rebooted")
    record = _record_of(request, records)
    if record is None:
        return _without_record(request, records)
    if not record.has(record.worker) and record.exit_code is None and record.has(record.shepherd):

        def settled() -> bool:
            now = _record_of(request, records)
            return now is None or now.exit_code is not None or now.has(now.worker) or not now.has(now.shepherd)

        wait_for(settled, RECORD_DEADLINE_S)
        record = _record_of(request, records) or record
    pids = list(record.living())
    age = age_s((record.worker or record.shepherd)[1])
    if record.exit_code is not None:
        return _state("exited", pids=pids, age_s=age, exit_code=record.exit_code)
    if record.worker and record.has(record.worker):
        return _state("running", main_pid=record.worker[0], pids=pids, age_s=age)
    return _state("gone", pids=pids)


def _without_record(request: dict[str, Any], records: Records) -> dict[str, Any]:
    """The record was removed, or it is of another start. A living shepherd writes it again within seconds."""
    pid, start_ticks = request["pid"], request["start_ticks"]
    if is_alive(pid, start_ticks):
        pids = list(_bare(request).living())
        return _state("running", pids=pids, age_s=age_s(start_ticks))
    other = records.read(request["unit"])
    process = look(pid)
    foreign = (other is not None and other.living()) or (process and process.start_ticks != start_ticks)
    return _state("foreign" if foreign else "gone")


def terminate(request: dict[str, Any], records: Records) -> dict[str, Any]:
    """SIGTERM to the worker. Without a record, to the shepherd, which passes it on."""
    record = _record_of(request, records)
    if record is None:
        if request["boot_id"] == boot_id():
            send(request["pid"], request["start_ticks"], signal.SIGTERM)
    elif record.worker and record.has(record.worker):
        send(record.worker[0], record.worker[1], signal.SIGTERM)
    return {}


def kill(request: dict[str, Any], records: Records) -> dict[str, Any]:
    """End every process of the unit. The shepherd goes last: it is the parent that keeps the others findable.

    When all is gone but the shepherd, it writes down how the worker ended and leaves by itself; one that does not
    (somebody stopped it) is killed too.
    """
    record = _record_of(request, records) or _bare(request)
    shepherd, ticks = record.shepherd
    # What was once known as ours is kept known, so that the end of one process cannot hide the rest of its session.
    known = [list(identity) for identity in record.living().items()]

    def others() -> dict[int, int]:
        nonlocal known
        now = record._replace(members=[*record.members, *known]).living()
        known = [list(identity) for identity in now.items()]
        return {pid: start for pid, start in now.items() if pid != shepherd}

    left = kill_all(others, request["deadline_s"])
    if not left and not wait_for(lambda: not record.has(record.shepherd), RECORD_DEADLINE_S):
        left = kill_all(lambda: {shepherd: ticks} if record.has(record.shepherd) else {}, RECORD_DEADLINE_S)
    return {"left": sorted(left)}


def forget(request: dict[str, Any], records: Records) -> dict[str, Any]:
    """Remove the record of an ended start."""
    with records.held():
        record = _record_of(request, records)
        if record:
            living = record.living()
            if living:
                pids = ", ".join(str(pid) for pid in living)
                raise Failure(f"cannot forget unit {record.unit}", f"it is alive: pid {pids}")
            records.remove(record.unit)
    return {}


def find(request: dict[str, Any], records: Records) -> dict[str, Any]:
    """The identity of the last start of that name, or null."""
    record = records.read(request["unit"])
    return {"found": _identity(record) if record else None}


COMMANDS = {
    "start": start,
    "status": status,
    "terminate": terminate,
    "kill": kill,
    "forget": forget,
    "find": find,
}


def _record_of(request: dict[str, Any], records: Records) -> Record | None:
    """The record, if it is of the very start that the caller means."""
    record = records.read(request["unit"])
    if record is None or record.boot_id != request["boot_id"]:
        return None
    return record if record.shepherd == [request["pid"], request["start_ticks"]] else None


def _bare(request: dict[str, Any]) -> Record:
    """What the caller knows of a start whose record is missing: its shepherd."""
    return Record(request["unit"], [request["pid"], request["start_ticks"]], request["boot_id"])


def _identity(record: Record) -> dict[str, Any]:
    pid, start_ticks = record.shepherd
    return {"unit": record.unit, "pid": pid, "start_ticks": start_ticks, "boot_id": record.boot_id}


def _state(
    state: str,
    *,
    main_pid: int | None = None,
    pids: list[int] | None = None,
    age_s: float | None = None,
    exit_code: int | None = None,
) -> dict[str, Any]:
    return {"state": state, "main_pid": main_pid, "pids": pids or [], "age_s": age_s, "exit_code": exit_code}
