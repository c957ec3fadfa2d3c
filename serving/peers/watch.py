"""The thread of a prefill rank that ends the requests of decode workers that are gone."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from serving import limits
from serving.inflight import told
from serving.peers import line
from serving.peers.line import Line
from serving.peers.rooms import Gone, Peer, Waiting, lost
from serving.stall import scheduler_pass
from serving.untyped import Untyped

logger = logging.getLogger(__name__)

GRACE: Final = "SGLANG_DSV4_LOST_DECODE_GRACE"
GRACE_DEFAULT_S: Final = 10.0

EVERY_S: Final = 1.0
"""How often everything is looked at. A connection that ends is noticed at once."""

UNCLAIMED_GRACES: Final = 2
"""For how many graces decode may be ahead of prefill: the router sends both their halves at the same time."""

IN_DOUBT_S: Final = 0.2
"""The same, while a worker has refused a connection and has not been declared gone."""


def start(manager: Untyped, *_: Untyped) -> None:
    """After prefill has made its KV manager: watch over that manager's decode workers from now on.

    SGLang's backend for benchmarks, `fake`, has none.

    Raises:
        SystemExit: SGLANG_DSV4_LOST_DECODE_GRACE is no number of seconds.
    """
    from sglang.srt.disaggregation.common.conn import CommonKVManager

    if not isinstance(manager, CommonKVManager):
        return
    manager.dsv4_peers = watch = Watch(manager, limits.seconds(GRACE, GRACE_DEFAULT_S))
    threading.Thread(target=watch.run, name="dsv4-lost-decode", daemon=True).start()


def gave_up(status: Untyped, sender: Untyped) -> None:
    """After prefill looked whether a request has waited too long for decode to ask: if so, have every decode told.

    Nobody here knows whose it is. The one that has it, and no room for it, would keep it until it has; the others do
    not know the room.
    """
    if status is not None:
        manager, room = sender.kv_mgr, sender.bootstrap_room
        with manager.failure_lock:
            reason = manager.failure_records.get(room)
        manager.dsv4_peers.given_up.append((room, reason))


class Watch:
    """What one prefill rank knows of its decode workers. All of it runs in one thread.

    A worker is known by its registration, which SGLang keeps for ever. One that is gone is not looked at any more,
    unless a room that has not ended names it.
    """

    def __init__(self, manager: Untyped, grace_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._manager = manager
        self._grace_s = grace_s
        self._clock = clock
        self._lines: dict[str, Line] = {}
        self._registrations: dict[str, Untyped] = {}
        self._gone: dict[str, Gone] = {}
        self._unseen: set[str] = set()
        self._waiting = Waiting()
        self._unclaimed = Waiting()
        self._looked_s = clock()
        self.given_up: deque[tuple[int, str | None]] = deque()
        """Rooms that prefill has given up, with why; the scheduler's thread puts them there."""
        self._rank = f"tp{manager.attn_tp_rank}/pp{manager.pp_rank}"

    def run(self) -> None:
        """Look for ever."""
        while True:
            try:
                self.look()
            except Exception:
                # A thread that ends would leave every later request without its bound.
                logger.exception("dsv4 lost decode: a look failed on rank %s; the next is in %g s", self._rank, EVERY_S)
                time.sleep(EVERY_S)
            in_doubt = any(not held.is_open for held in self._lines.values())
            line.wait([held for held in self._lines.values() if held.is_open], IN_DOUBT_S if in_doubt else EVERY_S)

    def look(self) -> None:
        """One look at all workers and all rooms; fails the rooms that are lost."""
        named, waiting, ended = self._rooms()
        now_s = self._clock()
        for name, held in list(self._lines.items()):
            self._look_at(name, held, now_s)
        for name in {name for names in named.values() for name in names if name in self._gone}:
            self._look_again(name)
        self._waiting.look(waiting, now_s)
        if scheduler_pass.is_long(time.monotonic()):
            # No request can be taken up meanwhile, and so none can claim its room.
            self._unclaimed.postpone(now_s - self._looked_s)
        self._looked_s = now_s
        self._unclaimed.look((room for room in (*named, *ended) if room not in told.opened), now_s)
        # Last, for no room may be failed for want of a worker that has just registered; looking can take seconds.
        self._notice_registrations()
        failed = lost(
            named,
            self._waiting.since_s,
            self._gone,
            any_alive=bool(self._lines),
            grace_s=self._grace_s,
            now_s=now_s,
        )
        for room, reason in failed.items():
            self._fail(room, reason)
        for room, waited_s in self._unclaimed.overdue(UNCLAIMED_GRACES * self._grace_s, now_s).items():
            self._drop_unclaimed(room, waited_s, has_ended=room in ended)
        if len(told.dropped):
            for room in list(told.opened):
                self._fail_if_dropped(room)
        while self.given_up:
            self._tell_all(*self.given_up.popleft())

    def _fail_if_dropped(self, room: int) -> None:
        """A request that comes after its decode was sent away would wait for it until the bootstrap timeout."""
        reason = told.dropped.reason(room)
        if reason is not None:
            told.dropped.forget(room)
            self._fail(room, reason)

    def _notice_registrations(self) -> None:
        for name, registration in dict(self._manager.decode_kv_args_table).items():
            if self._registrations.get(name) is registration:
                continue
            self._registrations[name] = registration
            self._gone.pop(name, None)
            if known := self._lines.pop(name, None):
                known.close()
            self._lines[name] = Line((registration.endpoint, registration.dst_port))

    def _rooms(self) -> tuple[dict[int, list[str]], list[int], set[int]]:
        """The rooms that have not ended, with the workers that asked for them, or that nobody asked for; the ended."""
        from sglang.srt.disaggregation.base.conn import KVPoll

        named: dict[int, list[str]] = {}
        waiting: list[int] = []
        ended: set[int] = set()
        for room, status in statuses(self._manager.request_status).items():
            if status in (KVPoll.Failed, KVPoll.Success):
                ended.add(room)
            elif infos := self._manager.transfer_infos.get(room):
                named[room] = list(infos)
            elif status == KVPoll.Bootstrapping:
                waiting.append(room)
        return named, waiting, ended

    def _look_at(self, name: str, held: Line, now_s: float) -> None:
        try:
            held.look()
        except OSError as error:
            if name not in self._unseen:
                self._unseen.add(name)
                logger.warning(
                    "dsv4 lost decode: cannot look at %s:%d from rank %s (%s); it is taken to be alive",
                    *held.address,
                    self._rank,
                    error,
                )
            return
        self._unseen.discard(name)
        if held.is_gone:
            del self._lines[name]
            self._gone[name] = Gone(Peer(name, *held.address), held.why, now_s)
            logger.warning(
                "dsv4 decode gone host=%s port=%d name=%s why=%r alive=%d rank=%s",
                *held.address,
                name,
                held.why,
                len(self._lines),
                self._rank,
            )

    def _look_again(self, name: str) -> None:
        """A room names a worker that was gone: it is there again if it lets us connect."""
        again = Line(self._gone[name].peer.address)
        try:
            again.look()
        except OSError:
            again.close()
            return
        if again.is_open:
            del self._gone[name]
            self._lines[name] = again
            logger.warning("dsv4 decode back host=%s port=%d name=%s rank=%s", *again.address, name, self._rank)

    def _fail(self, room: int, reason: str) -> None:
        infos = dict(self._manager.transfer_infos.get(room) or {})
        # A message to a worker that is gone may block its sender for 30 s, and every later one to it as well.
        alive = [
            (info.endpoint, info.dst_port)
            for name, info in infos.items()
            if name not in self._gone and not info.is_dummy
        ]
        ended = self._manager.conclude_failure(bootstrap_room=room, failure_reason=reason, targets=alive)
        if ended is not None:
            logger.warning("dsv4 lost decode room=%s rank=%s reason=%r", room, self._rank, reason)

    def _drop_unclaimed(self, room: int, waited_s: float, *, has_ended: bool) -> None:
        """Tell the decode that asked for a room which nobody opened, and close it: there is no sender that would.

        One that has ended, decode has given up itself: its client went away before prefill's half came so far.
        """
        if room in told.opened:
            return
        if has_ended:
            reason = "decode has given this request up before its half came to prefill"
        else:
            reason = (
                f"no request has come to prefill for this room in {waited_s:.0f} s: prefill was restarted since it was "
                "sent, or its half of it was lost; send the request again"
            )
            self._fail(room, reason)
        told.dropped.add(room, reason, time.monotonic())
        manager = self._manager
        manager.transfer_infos.pop(room, None)
        manager.req_to_decode_prefix_len.pop(room, None)
        if room in manager.request_status:
            manager.request_status.pop(room)
        with manager.failure_lock:
            manager.failure_records.pop(room, None)

    def _tell_all(self, room: int, reason: str | None) -> None:
        from sglang.srt.disaggregation.base.conn import KVPoll

        self._manager.send_kv_status_message(
            targets=[held.address for held in self._lines.values()],
            bootstrap_room=room,
            status=KVPoll.Failed,
            failure_reason=reason,
        )


def statuses(request_status: Untyped) -> Mapping[int, int]:
    """A copy of SGLang's table of rooms and where they stand: a dict, or its store that pipeline stages agree on."""
    if isinstance(request_status, dict):
        return dict(request_status)
    with request_status._cache_lock:
        return dict(request_status._local_map)
