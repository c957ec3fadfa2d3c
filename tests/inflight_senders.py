"""What senders say and tell, on SGLang's own managers and senders, patched."""

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import zmq

from tests.inflight_rooms import BACKENDS, HERE, NAMES, Side, manager_of

from sglang.srt.disaggregation import utils  # isort: skip  # tests.inflight_rooms quiets its warnings first
from sglang.srt.disaggregation.base import KVPoll  # isort: skip
from sglang.srt.disaggregation.nixl.conn import NixlKVManager, NixlKVSender  # isort: skip

LONG_S = 8.0
"""Longer than a message to a decode may hold up the scheduler, and shorter than SGLang's own 30 s."""
PAGES = 3
_rooms = itertools.count(1_000_000)
_kept: list[Any] = []
"""Managers with sockets that are watched: ZeroMQ stands still for ever if it has something to say to a lost watcher."""


def the_poll_of_all_is_the_poll_of_each() -> Any:
    """The senders for which the poll of all of them says something else than each one's own, as a list of why."""
    concluded = (None, KVPoll.Failed, KVPoll.Success)
    statuses = (None, *range(len(NAMES)))
    kinds = list(itertools.product(concluded, statuses, (0, 1)))

    def senders() -> list[Any]:
        manager = manager_of(NixlKVManager)
        made = []
        for conclusion, status, outstanding in kinds:
            room = next(_rooms)
            made.append(NixlKVSender(manager, f"{HERE}:1", room))
            if status is None:
                manager.request_status.pop(room)
            elif status != KVPoll.Bootstrapping:
                manager.update_status(room, status)
            manager._staging_outstanding[room] = outstanding
            made[-1].conclude_state = conclusion
        return made

    together = utils._poll_with_failure_injection(senders())
    alone = [int(sender.poll()) for sender in senders()]
    return [
        [str(kind), one, other] for kind, one, other in zip(kinds, together, alone, strict=True) if one != other
    ] or f"{len(set(alone))} statuses of {len(alone)} senders"


def a_decode_that_takes_no_more_messages() -> Any:
    """Whether the scheduler's thread goes on after an abort, all that can wait for this decode being full."""
    manager, room, aborted = manager_of(NixlKVManager), next(_rooms), threading.Event()
    _kept.append(manager)
    with socket.create_server((HERE, 0)) as listener:
        port = listener.getsockname()[1]
        sender = NixlKVSender(manager, f"{HERE}:1", room)
        manager.update_status(room, KVPoll.WaitingForInput)
        manager.transfer_infos[room] = {"peer": SimpleNamespace(endpoint=HERE, dst_port=port, is_dummy=False)}
        to_decode = manager._connect(f"tcp://{HERE}:{port}")
        with contextlib.suppress(zmq.Again):
            while True:
                to_decode.send(b"", zmq.NOBLOCK)

        def aborts() -> None:
            sender.abort()
            aborted.set()

        threading.Thread(target=aborts, daemon=True).start()
        return [aborted.wait(LONG_S), NAMES[sender.poll()]]


def an_abort_after_all_was_sent() -> Any:
    """What decode hears with each backend: a worker forgets where a room went when it has sent the last chunk."""
    return {backend: _aborted_after_all_was_sent(backend) for backend in BACKENDS}


def _aborted_after_all_was_sent(backend: str) -> Any:
    side, room = Side(backend), next(_rooms)
    _kept.append(side.manager)
    sender = side.asked(room)
    if not side.is_nixl:  # it is by the port in a session's name that it finds a worker
        infos = side.manager.transfer_infos[room]
        side.manager.transfer_infos[room] = {f"{HERE}:1": info for info in infos.values()}
    sender.init(PAGES, 0)
    sender.send(np.arange(PAGES, dtype=np.int32))
    side.manager.transfer_infos.pop(room)
    sender.abort()
    return [[said[0] == room, *said[1:]] for said in side.heard_until_now()]


SCENES: tuple[Callable[[], Any], ...] = (
    the_poll_of_all_is_the_poll_of_each,
    a_decode_that_takes_no_more_messages,
    an_abort_after_all_was_sent,
)
