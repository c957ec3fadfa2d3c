"""The keys that a running engine asks for: its record has their fingerprints, its process has them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsv4ctl.errors import CannotLook
from dsv4ctl.procfs import cmdline

if TYPE_CHECKING:
    from dsv4ctl.fleet import Place
    from dsv4ctl.state import WorkerRecord


def flag_of(argv: Sequence[str], flag: str) -> str | None:
    """The value of a flag in a command line; None where it is not given."""
    for at, word in enumerate(argv):
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
        if word == flag and at + 1 < len(argv):
            return argv[at + 1]
    return None


def headers_of(api_key: str | None) -> dict[str, str]:
    """What a request carries that has a key."""
    return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}


def headers_by(argv: Sequence[str]) -> dict[str, str]:
    """What an engine with this command line wants of whoever asks for its pages or for a generation."""
    return headers_of(flag_of(argv, "--api-key"))


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
    return headers_of(flag_of(argv, flag))
