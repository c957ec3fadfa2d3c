"""Who listens on which port."""

from dsv4ctl.doctor.asking import Question
from dsv4ctl.doctor.box import Box
from dsv4ctl.procfs import LISTENERS_SCRIPT, Listener, parse_listeners

LISTENERS = Question("/proc/net/tcp", LISTENERS_SCRIPT)


def listeners(box: Box) -> tuple[Listener, ...]:
    """Every listening TCP socket, by port.

    Raises:
        Unseen
    """
    return box.read(LISTENERS.name, parse_listeners)
