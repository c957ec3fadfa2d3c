"""A TCP connection within a deadline, name resolution included."""

import queue
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from dsv4ctl.errors import HostUnreachable
from dsv4ctl.hosts.ssh_config import Target

AddressInfo = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


def dial(target: Target, end: float, clock: Callable[[], float]) -> socket.socket:
    """Connect to a target; its addresses are tried in the resolver's order.

    Raises:
        HostUnreachable: the name does not resolve, or no address accepted before `end`.
    """
    started = clock()
    why = "its name has no address"
    for family, kind, protocol, _, address in _addresses(target, end - started):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(max(0.05, end - clock()))
            connection.connect(address)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except TimeoutError:
            connection.close()
            why = f"no answer within {end - started:.0f} s"
        except OSError as error:
            connection.close()
            why = (error.strerror or str(error)).lower()
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise HostUnreachable(f"{target}: no connection", why=why)


def _addresses(target: Target, timeout_s: float) -> Sequence[AddressInfo]:
    """The resolver has no deadline of its own, so it works in a thread that may be left behind."""
    answers: queue.SimpleQueue[Sequence[AddressInfo] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(target.hostname, target.port, type=socket.SOCK_STREAM))
        except OSError as error:
            answers.put(error)

    threading.Thread(target=ask, name=f"resolve {target.hostname}", daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.05, timeout_s))
    except queue.Empty:
        raise HostUnreachable(f"{target}: its name was not resolved within {timeout_s:.0f} s") from None
    if isinstance(answer, OSError):
        raise HostUnreachable(f"{target}: its name cannot be resolved", why=answer.strerror) from answer
    return answer
