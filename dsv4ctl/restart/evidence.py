"""What a stack looked like before it was restarted: kept in a folder on each host, for whoever asks afterwards why.

STATE/stacks/NAME/evidence/TIME/WORKER/ holds loads.json, metrics.txt, server_info.json, env.txt, argv.txt, log.txt and
a stack of every Python process (stacks-PID.txt); beside them are nvidia-smi.txt and router-workers.json. What could not
be had is said in missing.txt, and stops nothing: a stack that is worth restarting seldom answers everything.
"""

import posixpath
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4ctl.engine_keys import headers_by
from dsv4ctl.errors import Dsv4Error
from dsv4ctl.fleet import Place
from dsv4ctl.hosts.base import FileLog, JournalLog
from dsv4ctl.profile.schema import ROUTER
from dsv4ctl.redaction import redact_argv, redact_env
from dsv4ctl.restart.running import Running
from dsv4ctl.scrubbing import Scrubber

if TYPE_CHECKING:
    import httpx

    from dsv4ctl.stack import Worker

KEPT = 10
"""So many folders stay on a host; the oldest go."""

_HTTP_TIMEOUT_S = 3.0
_COMMAND_DEADLINE_S = 15.0
_LOG_BYTES = 256 * 1024
_JOURNAL_LINES = "2000"
_WORKERS_AT_ONCE = 8
# The interpreter of an engine has py-spy beside it; a host may have one of its own.
_STACKS = 'p="$(dirname -- "$1")/py-spy"; [ -x "$p" ] || p=py-spy; exec "$p" dump --nonblocking --pid "$2"'


@dataclass(frozen=True)
class Kept:
    """Where the evidence of one host is, how many files, and what could not be had."""

    folder: str
    files: int
    missing: tuple[str, ...]


Piece = tuple[str, Callable[[], bytes]]


def folder_of(place: Place, stack: str, moment: str) -> str:
    """The folder of one restart on a host."""
    return posixpath.join(place.store.directory(stack), "evidence", moment)


def keep_evidence(
    place: Place,
    running: Sequence[Running],
    plans: "Sequence[Worker]",
    folder: str,
    *,
    within_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Kept:
    """Gather what there is of a host's workers, side by side, and write it down. What has not begun within `within_s`
    is left out, and said. `plans` have the secrets of workers that are dead.

    Raises:
        OperationFailed: the folder cannot be written.
        HostUnreachable
    """
    mine = [one for one in running if one.host == place.name]
    pieces = [piece for one in mine for piece in worker_pieces(place, one)]
    pieces.append(("nvidia-smi.txt", lambda: _output(place, ["nvidia-smi"])))
    missing: list[str] = []
    files: dict[str, bytes] = {}
    end = clock() + within_s - _COMMAND_DEADLINE_S
    with ThreadPoolExecutor(_WORKERS_AT_ONCE) as pool:
        asked = pool.map(lambda piece: had(piece) if clock() < end else (b"", "there was no time left for it"), pieces)
        for (name, _), (data, why) in zip(pieces, asked, strict=True):
            if why:
                missing.append(f"{name}: {why}")
            else:
                files[name] = data
    scrubber = Scrubber(
        [*(one.environ or {} for one in mine), *(plan.env for plan in plans)],
        [*(one.argv or () for one in mine), *(plan.argv for plan in plans)],
    )
    if missing:
        files["missing.txt"] = "".join(f"{line}\n" for line in missing).encode()
    files = {name: scrubber.scrub(data) for name, data in files.items()}
    for name, data in files.items():
        place.host.write(posixpath.join(folder, name), data)
    _prune(place, posixpath.dirname(folder))
    return Kept(folder, len(files), tuple(missing))


def had(piece: Piece) -> tuple[bytes, str]:
    """Its content, or why there is none: a sentence of one line."""
    import httpx

    try:
        return piece[1](), ""
    except (Dsv4Error, httpx.HTTPError, OSError, ValueError) as error:
        return b"", (str(error) or type(error).__name__).splitlines()[0]


def worker_pieces(place: Place, one: Running) -> list[Piece]:
    """What can be had of one worker, as file names with what gets their content. Its environment and command line are
    redacted; in the other texts secrets may stand."""
    url = f"http://{one.record.listen}:{one.record.port}"
    asked = {"router-workers.json": "/workers"} if one.record.role == ROUTER else _ENGINE_PATHS
    folder = one.name
    pieces: list[Piece] = [(f"{folder}/log.txt", lambda: _log(place, one))]
    if one.environ is not None and one.argv is not None:
        text = _env_text(one.environ).encode(), "\n".join(redact_argv(one.argv)).encode() + b"\n"
        pieces += [(f"{folder}/env.txt", lambda: text[0]), (f"{folder}/argv.txt", lambda: text[1])]
    if one.alive:
        pieces += [
            (f"{folder}/{name}", _asking(place, url + path, headers_by(one.argv or ()))) for name, path in asked.items()
        ]
    if one.record.role != ROUTER:
        pieces += [(f"{folder}/stacks-{pid}.txt", _stacks(place, pid)) for pid in one.pids]
    return pieces


_ENGINE_PATHS: Mapping[str, str] = {
    "loads.json": "/v1/loads",
    "metrics.txt": "/metrics",
    "server_info.json": "/server_info",
}


def _asking(place: Place, url: str, headers: Mapping[str, str]) -> Callable[[], bytes]:
    def ask() -> bytes:
        with place.host.http(timeout_s=_HTTP_TIMEOUT_S) as client:
            client.headers.update(headers)
            return _body(client, url)

    return ask


def _body(client: "httpx.Client", url: str) -> bytes:
    response = client.get(url)
    if response.status_code != 200:
        raise ValueError(f"{url} answers HTTP {response.status_code}")
    return response.content


def _stacks(place: Place, pid: int) -> Callable[[], bytes]:
    argv = ["sh", "-c", _STACKS, "sh", place.site.python, str(pid)]
    return lambda: _output(place, argv)


def _output(place: Place, argv: Sequence[str]) -> bytes:
    return place.host.run(argv, deadline_s=_COMMAND_DEADLINE_S).stdout


def _log(place: Place, one: Running) -> bytes:
    source = place.supervisor.log(one.record.unit)
    if isinstance(source, FileLog):
        return place.host.read(source.path, offset=-_LOG_BYTES)
    assert isinstance(source, JournalLog)
    scope = ["--user"] if source.user else []
    return _output(place, ["journalctl", *scope, "-u", source.unit, "-n", _JOURNAL_LINES, "-o", "cat", "--no-pager"])


def _env_text(environ: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in sorted(redact_env(environ).items()))


def _prune(place: Place, root: str) -> None:
    # Folders are named by their time, so the last ones of a sorted list are the newest.
    script = 'cd "$1" && ls -1 | sort | head -n -"$2" | while IFS= read -r d; do rm -rf -- "./$d"; done'
    place.host.run(["sh", "-c", script, "sh", root, str(KEPT)], deadline_s=_COMMAND_DEADLINE_S)
