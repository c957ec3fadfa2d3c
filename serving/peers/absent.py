"""A request that comes to decode while its prefill is away: prefill never got its half, so no KV will come for it.

SGLang looks for such a prefill fifteen times, a second apart. When it comes back meanwhile, decode asks it for a room
that no request will open, and waits until something else ends the request.
"""

import http.client
import logging
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from serving.untyped import Untyped

logger = logging.getLogger(__name__)

LOOK_WITHIN_S: Final = 1.0
"""The scheduler waits meanwhile, as it does for SGLang's own look before this one."""

_STARTING: Final = http.client.SERVICE_UNAVAILABLE

Requests = Mapping[str, list[Untyped]]
"""By the address of the prefill that they are for."""


def ensure_prefill_info(
    original: Untyped, queue: Untyped, addr_to_reqs: Requests
) -> tuple[dict[str, list[Untyped]], list[Untyped]]:
    """Around decode's look for the prefills of the requests that wait for one: fails those whose prefill is away.

    The bootstrap server listens before the HTTP server does and as long as it does, so where nobody listens there now,
    nobody took prefill's half before. Where not all ranks have registered, the first look may have been ahead of a rank
    on another host; the second, a second later, is believed.

    Returns:
        what SGLang's function does: the requests whose prefill is known, by its address; those that wait on.
    """
    before = dict(queue._ensure_last_attempt_time)
    ready, remaining = original(queue, addr_to_reqs)
    for address, decode_reqs in addr_to_reqs.items():
        looked_s = queue._ensure_last_attempt_time.get(address)
        if address in ready or looked_s is None or looked_s == before.get(address):
            continue
        if reason := _why_away(address, looked_before=queue._ensure_retry_count.get(address, 0) > 1):
            # A request that is computed again sends prefill's half itself, once it has found prefill.
            failed = [decode_req for decode_req in decode_reqs if not decode_req.is_rebootstrap]
            for decode_req in failed:
                _fail(decode_req, reason)
            lost = {id(decode_req) for decode_req in failed}
            remaining = [decode_req for decode_req in remaining if id(decode_req) not in lost]
    return ready, remaining


def _why_away(address: str, *, looked_before: bool) -> str | None:
    """What the bootstrap server at `address` shows of a prefill that serves nobody; None if it may serve."""
    where = urlsplit(f"//{address}")
    asked = http.client.HTTPConnection(where.hostname or "", where.port, timeout=LOOK_WITHIN_S)
    all_ranks = "prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
    try:
        asked.request("GET", f"/route?{all_ranks}")
        answer = asked.getresponse()
    except ConnectionRefusedError:
        return f"nobody listens at prefill's bootstrap server {address}: prefill is not running"
    except (OSError, http.client.HTTPException):
        # It may be busy; SGLang looks again.
        return None
    finally:
        asked.close()
    if answer.status == _STARTING and looked_before:
        return f"prefill at {address} is starting: not all of its ranks have registered"
    return None


def _fail(decode_req: Untyped, reason: str) -> None:
    receiver = decode_req.kv_receiver
    if receiver is None:
        # The request has ended otherwise, and SGLang has not yet taken it from this list.
        return
    receiver.abort()
    receiver.kv_mgr.record_failure(
        receiver.bootstrap_room, f"{reason}, so its half of this request is lost; send the request again"
    )
    logger.warning("dsv4 absent prefill rid=%s room=%s reason=%r", decode_req.req.rid, receiver.bootstrap_room, reason)
