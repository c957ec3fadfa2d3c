"""A bundle as a value, and as a file: all of it or nothing, and never over another file."""

import contextlib
import gzip
import importlib.util
import io
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

from dsv4ctl.errors import OperationFailed, UsageError

MODE = 0o600


@dataclass(frozen=True)
class Member:
    """One file of a bundle. `missing` says why it could not be had; then `data` is that sentence."""

    name: str
    data: bytes
    missing: str = ""


@dataclass(frozen=True)
class Bundle:
    """What goes into the file, secrets taken out already. `name` is the folder in which all of it lies."""

    name: str
    made_at: datetime
    members: tuple[Member, ...]

    @property
    def size_bytes(self) -> int:
        """Before compression."""
        return sum(len(member.data) for member in self.members)

    @property
    def missing(self) -> tuple[Member, ...]:
        """What could not be had."""
        return tuple(member for member in self.members if member.missing)

    def rows(self) -> Iterator[tuple[str, int, str]]:
        """What is in it, for a person who decides whether to hand it out: name, bytes, and why it is missing."""
        for member in self.members:
            yield member.name, len(member.data), member.missing


def check_path(path: Path) -> None:
    """Whether a bundle can be written there, before anything is gathered for it.

    Raises:
        UsageError: no such kind of file, it exists, its directory does not, or the compression is not installed.
    """
    _compression(path)
    if os.path.lexists(path):
        raise UsageError(f"{path} is there already", hint="name a file that is not; a bundle replaces nothing")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path} cannot be written", why=f"there is no directory {path.absolute().parent}")


def write(bundle: Bundle, path: Path, *, check: Callable[[], None] = lambda: None) -> int:
    """Write it, for its owner alone (mode 0600). Nothing is left where that fails. Returns its size in bytes.

    Raises:
        Interrupted: by `check`, which is called before each member.
        UsageError: as `check_path`.
        OperationFailed: disk full, or not permitted.
    """
    check_path(path)
    compressed = _compression(path)
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
        try:
            with os.fdopen(handle, "wb") as file:
                os.fchmod(handle, MODE)
                with compressed(file) as stream:
                    _write_tar(bundle, stream, check)
                file.flush()
                os.fsync(handle)
                size = os.fstat(handle).st_size
            # A link, and no rename: it fails where somebody made the file meanwhile.
            os.link(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                Path(temporary).unlink()
    except FileExistsError as error:
        raise UsageError(f"{path} is there already", hint="name a file that is not") from error
    except OSError as error:
        raise OperationFailed(f"{path} cannot be written", why=error.strerror) from error
    return size


def _write_tar(bundle: Bundle, stream: IO[bytes], check: Callable[[], None]) -> None:
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for member in bundle.members:
            check()
            info = tarfile.TarInfo(f"{bundle.name}/{member.name}")
            info.size = len(member.data)
            info.mode = MODE
            info.mtime = int(bundle.made_at.timestamp())
            tar.addfile(info, io.BytesIO(member.data))


Compression = Callable[[IO[bytes]], "contextlib.AbstractContextManager[IO[bytes]]"]


def _compression(path: Path) -> Compression:
    """By the file's name.

    Raises:
        UsageError
    """
    if path.name.endswith(".tar.gz"):
        return _gzipped
    if not path.name.endswith(".tar.zst"):
        raise UsageError(f"{path} is no name for a bundle", hint="let it end in .tar.zst or .tar.gz")
    if importlib.util.find_spec("zstandard") is None:
        raise UsageError(
            f"{path} cannot be written: this interpreter lacks the package zstandard",
            hint="pip install zstandard, or let the name end in .tar.gz",
        )
    return _zstandard


@contextmanager
def _gzipped(file: IO[bytes]) -> Iterator[IO[bytes]]:
    with gzip.GzipFile(filename="", fileobj=file, mode="wb") as stream:
        yield stream  # type: ignore[misc]


@contextmanager
def _zstandard(file: IO[bytes]) -> Iterator[IO[bytes]]:
    import zstandard

    with zstandard.ZstdCompressor(level=10).stream_writer(file, closefd=False) as stream:
        yield stream
