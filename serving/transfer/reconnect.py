"""A NIXL peer whose connection was lost and that lives is connected again.

NIXL keeps a remote agent's metadata after its connection has died, and says that it is valid; SGLang registers a peer
anew only when NIXL says that it is not. So every transfer to that peer fails from then on, until prefill is restarted.
"""

import logging
import sys
import time
from collections.abc import Mapping

from serving.untyped import Untyped

logger = logging.getLogger(__name__)

AT_MOST_EVERY_S = 1.0
"""How often one peer's registration is dropped: as often as SGLang itself rebuilds it."""


def reload_peers(original: Untyped, manager: Untyped, room_transfer_infos: Mapping[str, object]) -> None:
    """Around SGLang's look at the peers of a room whose transfer has just failed, in the worker that alone uses them.

    The worker has waited for the other handles of the room, so nothing is on the way by these connections that could
    still arrive.
    """
    if _is_about_the_connection(sys.exception()):
        for name in room_transfer_infos:
            _drop(manager, name)
    original(manager, room_transfer_infos)


def _is_about_the_connection(error: BaseException | None) -> bool:
    from sglang.srt.disaggregation.nixl.conn import _NIXL_TRANSPORT_ERRORS

    if isinstance(error, _NIXL_TRANSPORT_ERRORS) or isinstance(error and error.__cause__, _NIXL_TRANSPORT_ERRORS):
        return True
    # A handle that ended in an error says no more than that; SGLang raises it in its own words.
    return isinstance(error, RuntimeError) and str(error).startswith("NIXL transfer")


def _drop(manager: Untyped, name: str) -> None:
    peer = manager.decode_kv_args_table.get(name)
    if peer is None or not manager.agent.check_remote_metadata(name):
        return
    with manager._peer_reload_lock:
        last = manager._peer_reload_times.get(name)
        if last is not None and time.monotonic() - last < AT_MOST_EVERY_S:
            return
        manager.agent.remove_remote_agent(name)
    logger.warning("dsv4 reconnect peer=%s endpoint=%s:%s", name, peer.endpoint, peer.dst_port)
