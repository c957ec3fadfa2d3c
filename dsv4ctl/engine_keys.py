"""The keys that a running engine asks for: its record has their fingerprints, its process has them."""

from typing import TYPE_CHECKING

from dsv4ctl.errors import CannotLook
from dsv4ctl.procfs import cmdline
from dsv4ctl.restart.proving import flag_of

if TYPE_CHECKING:
    from dsv4ctl.fleet import Place
    from dsv4ctl.state import WorkerRecord


def keys_of(place: "Place", worker: "WorkerRecord", flag: str) -> dict[str, str]:
    """Headers with the key that a worker was started with, from its process: the record has its fingerprint alone.

    Raises:
        CannotLook: it has one, and the process cannot be read.
    """
    if worker.handle is None or flag_of(worker.argv, flag) is None:
        return {}
    pid = place.supervisor.status(worker.handle).main_pid
    try:
        argv = cmdline(place.host, pid) if pid is not None else ()
    except (FileNotFoundError, PermissionError) as error:
        raise CannotLook(
            f"the {flag} of {worker.name} cannot be read", why=str(error), hint="run this as who started the stack"
        ) from error
    key = flag_of(argv, flag)
    return {} if key is None else {"Authorization": f"Bearer {key}"}
