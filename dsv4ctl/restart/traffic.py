"""The requests that the engines still have: how many, how old; waiting for them, and ending what is left of them."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsv4ctl.engine_keys import flag_of, headers_by, headers_of
from dsv4ctl.errors import DeadlineExceeded, HostUnreachable, OperationFailed
from dsv4ctl.fleet import Fleet
from dsv4ctl.metrics.loads import PATH, UnreadableLoads, parse_loads
from dsv4ctl.procfs import listeners
from dsv4ctl.waiting import wait_until

if TYPE_CHECKING:
    from dsv4ctl.stack import Worker

ANSWER_WITHIN_S = 2.0
"""For how long an engine's answer is awaited."""

_SHORTEST_LOOK_S = 0.5
_LOOK_EVERY_S = 0.2
# A scheduler that publishes nothing for so long stands still; a stock one that has nothing to do is as silent.
_SILENT_S = 5.0
_OK, _NOT_FOUND = 200, 404


@dataclass(frozen=True)
class Held:
    """What one engine has. `requests` is None where it does not say, and `why` says why. `oldest_s` is the age of the
    oldest in prefill's inflight queue, `inflight` how many are in it; None on an engine that does not tell. `mute`: it
    answers, and is of a kind that does not tell."""

    worker: str
    role: str
    requests: int | None
    inflight: int | None = None
    oldest_s: float | None = None
    why: str = ""
    mute: bool = False

    def __str__(self) -> str:
        if self.requests is None:
            return f"{self.worker}: unknown ({self.why})"
        text = f"{self.worker}: {self.requests}"
        if self.inflight and self.oldest_s is not None:
            text += f", {self.inflight} of them inflight, the oldest for {self.oldest_s:.1f} s"
        return text + (f" ({self.why})" if self.why else "")


def outstanding(
    fleet: Fleet,
    engines: Sequence["Worker"],
    now: Callable[[], float] = time.time,
    *,
    within_s: float = ANSWER_WITHIN_S,
) -> tuple[Held, ...]:
    """What every engine has now; all are asked at once. An engine that cannot be asked is said, and is no error."""
    with ThreadPoolExecutor(max(1, len(engines))) as pool:
        return tuple(pool.map(lambda worker: _held(fleet, worker, now, within_s), engines))


def nothing_left(held: Sequence[Held]) -> bool:
    """Whether all engines say that they have no request."""
    return all(one.requests == 0 for one in held)


def drain(
    look: Callable[[float], tuple[Held, ...]],
    *,
    within_s: float,
    sleep: Callable[[float], None],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[bool, tuple[Held, ...]]:
    """Wait until no engine has a request, at most `within_s`. Returns whether that came, and what is there then: of an
    engine that gave no answer to the last look what it said before, with how long ago that was.

    `look` is told for how long an answer may be awaited: an engine that stands still must not make this longer.
    """
    seen: tuple[Held, ...] = ()
    said: dict[str, tuple[float, Held]] = {}
    end_s = clock() + within_s

    def empty() -> bool:
        nonlocal seen
        seen = look(min(ANSWER_WITHIN_S, max(_SHORTEST_LOOK_S, end_s - clock())))
        said.update((one.worker, (clock(), one)) for one in seen if one.requests is not None)
        return nothing_left(seen)

    def last_known(one: Held) -> Held:
        at_s, earlier = said.get(one.worker, (0.0, one))
        # That it had none then says nothing of now.
        if one.requests is not None or not earlier.requests:
            return one
        return replace(earlier, why=f"as of {clock() - at_s:.1f} s ago; now: {one.why}")

    try:
        wait_until(
            empty, deadline_s=within_s, interval_s=_LOOK_EVERY_S, what="the requests to end", sleep=sleep, clock=clock
        )
    except DeadlineExceeded:
        return False, tuple(last_known(one) for one in seen)
    return True, seen


def abort_all(fleet: Fleet, engines: Sequence["Worker"]) -> dict[str, str]:
    """Ask every engine to end all its requests with an error. Returns what each said, `""` where it took it.

    Decode goes first: its half is the one that a client hears.
    """
    import httpx

    said: dict[str, str] = {}
    for worker in sorted(engines, key=lambda worker: worker.role != "decode"):
        try:
            with fleet[worker.host].host.http(timeout_s=ANSWER_WITHIN_S) as client:
                headers = headers_of(flag_of(worker.argv, "--admin-api-key")) or headers_by(worker.argv)
                response = client.post(f"{worker.url}/abort_request", json={"abort_all": True}, headers=headers)
            said[worker.name] = "" if response.status_code == _OK else f"HTTP {response.status_code}"
        except (httpx.HTTPError, HostUnreachable) as error:
            said[worker.name] = str(error) or type(error).__name__
    return said


def _held(fleet: Fleet, worker: "Worker", now: Callable[[], float], within_s: float) -> Held:
    import httpx

    try:
        with fleet[worker.host].host.http(timeout_s=within_s) as client:
            response = client.get(f"{worker.url}{PATH}", headers=headers_by(worker.argv))
        if response.status_code != _OK:
            mute = response.status_code == _NOT_FOUND
            return Held(worker.name, worker.role, None, why=f"HTTP {response.status_code}", mute=mute)
        loads = parse_loads(response.json())
    except httpx.ConnectError as error:
        # An engine that is ending closes its port first: nobody can be waiting for an answer from it any more.
        if _port_is_closed(fleet, worker):
            return Held(worker.name, worker.role, 0, why="its port is closed")
        return Held(worker.name, worker.role, None, why=str(error) or type(error).__name__)
    except (httpx.HTTPError, UnreadableLoads, ValueError) as error:
        return Held(worker.name, worker.role, None, why=str(error) or type(error).__name__)
    counts = [load.requests for load in loads]
    if not loads or None in counts:
        return Held(worker.name, worker.role, None, why="its answer has no count", mute=True)
    published = [load.published_at for load in loads if load.published_at is not None]
    silent_s = now() - min(published) if published else 0.0
    inflight = [load.inflight for load in loads if load.inflight is not None]
    ages = [float(load.dsv4["oldest_age_s"]) for load in loads if "oldest_age_s" in load.dsv4]
    return Held(
        worker.name,
        worker.role,
        sum(count for count in counts if count is not None),
        sum(inflight) if inflight else None,
        max(ages) if ages else None,
        f"as of {silent_s:.0f} s ago" if silent_s > _SILENT_S else "",
    )


def _port_is_closed(fleet: Fleet, worker: "Worker") -> bool:
    """Whether nobody listens there, as the host says: a connection may also fail on the way to it."""
    try:
        held = listeners(fleet[worker.host].host)
    except (HostUnreachable, OperationFailed):
        return False
    return all(listener.port != worker.port for listener in held)


def in_all(held: Sequence[Held]) -> int:
    """How many requests there are at most: one of a pair is counted by prefill and by decode."""
    by_role: dict[str, int] = {}
    for one in held:
        by_role[one.role] = by_role.get(one.role, 0) + (one.requests or 0)
    return max(by_role.values(), default=0)
