"""The other half of a request learns that the scheduler of this one does not move.

The router answers a client once both halves have ended, and the other engine would wait out its own 300 s.

A decode worker tells every rank of the prefill worker, as its scheduler would for an aborted request. A prefill worker
need not tell: decode asks its bootstrap server for its health every few seconds, and fails what it has of a prefill
worker that answers badly twice; so the bootstrap server answers for the scheduler.
"""

import http.client
import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Final

from serving.untyped import Untyped

logger = logging.getLogger(__name__)

ANSWER_WITHIN_S: Final = 5.0
SEND_WITHIN_MS: Final = 2000


def answer_for_scheduler(server: Untyped) -> None:
    """Before a bootstrap server sets up its routes: its health is bad while `dsv4_scheduler_stalled` is set on it."""
    from aiohttp import web

    healthy = server._handle_health_check

    async def health(request: Untyped) -> Untyped:
        if server.dsv4_scheduler_stalled:
            return web.Response(status=503, text="the scheduler of this prefill worker does not move")
        return await healthy(request)

    server.dsv4_scheduler_stalled = False
    server._handle_health_check = health


def give_up(host: str, port: int, rooms: Sequence[int]) -> None:
    """Tell the prefill worker whose bootstrap server is there that decode has given these rooms up.

    Takes seconds at worst, and logs what cannot be done: prefill then ends them after its own limits.
    """
    import zmq
    from sglang.srt.disaggregation.common.conn import ABORT_TAG
    from sglang.srt.utils.network import NetworkAddress

    told = 0
    try:
        with zmq.Context() as context:
            for rank_host, rank_port in _ranks(host, port):
                with context.socket(zmq.PUSH) as socket:
                    socket.setsockopt(zmq.LINGER, SEND_WITHIN_MS)
                    socket.setsockopt(zmq.SNDTIMEO, SEND_WITHIN_MS)
                    address = NetworkAddress(rank_host, rank_port)
                    socket.setsockopt(zmq.IPV6, int(address.is_ipv6))
                    socket.connect(address.to_tcp())
                    for room in rooms:
                        socket.send_multipart([ABORT_TAG, str(room).encode()])
                told += 1
    except (OSError, http.client.HTTPException, ValueError, LookupError, zmq.ZMQError) as error:
        logger.warning(
            "dsv4 scheduler stall: prefill at %s:%d was not told of %d requests (%d ranks were), and will end them "
            "after its own limits: %s: %s",
            host,
            port,
            len(rooms),
            told,
            type(error).__name__,
            error,
        )
        return
    logger.warning(
        "dsv4 scheduler stall: prefill at %s:%d told of %d requests on %d ranks", host, port, len(rooms), told
    )


def _ranks(host: str, port: int) -> Iterator[tuple[str, int]]:
    """Where the ranks of a prefill worker listen, as its bootstrap server knows them."""
    shape = _route(host, port, (-1, -1, -1, -1))
    if shape is None:
        raise LookupError("its bootstrap server does not know its ranks")
    sizes = (shape["dp_size"], shape["attn_cp_size"], shape["attn_tp_size"], shape["pp_size"])
    for rank in itertools.product(*(range(int(size)) for size in sizes)):
        if (found := _route(host, port, rank)) is not None:
            yield str(found["rank_ip"]), int(found["rank_port"])


def _route(host: str, port: int, rank: tuple[int, ...]) -> dict[str, Untyped] | None:
    """What the bootstrap server says of this rank (data, context, tensor, pipeline), None when it has none such."""
    names = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
    query = "&".join(f"{name}={number}" for name, number in zip(names, rank, strict=True))
    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_WITHIN_S)
    try:
        connection.request("GET", f"/route?{query}")
        response = connection.getresponse()
        text = response.read()
        if response.status == http.client.NOT_FOUND:
            return None
        if response.status != http.client.OK:
            raise LookupError(f"its bootstrap server answers {response.status}: {text.decode(errors='replace')[:200]}")
        found: dict[str, Untyped] = json.loads(text)
        return found
    finally:
        connection.close()
