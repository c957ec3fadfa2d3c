"""A unit's log file and its rotation. The worker writes to the file itself; nobody stands between."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path
from typing import IO

from .records import private

FALLOC_FL_COLLAPSE_RANGE = 0x08
CHUNK_BYTES = 1 << 20


class LogFile:
    """NAME.log and up to `keep` older ones; NAME.log.1 is the youngest of them."""

    def __init__(self, path: str, *, limit_bytes: int, keep: int) -> None:
        self.path = Path(path)
        self.limit_bytes = limit_bytes
        self.keep = keep
        self.rotate_at = limit_bytes

    def begin(self) -> int:
        """Put the log of the previous start aside and open a new one; returns its descriptor, for appending."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.path.exists() and self.path.stat().st_size:
            self._shift()
            self.path.replace(self._older(1))
        return os.open(str(self.path), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def rotate_if_large(self) -> None:
        """Move what is in the log to NAME.log.1 when it has grown past the limit. The worker keeps its descriptor.

        A copy is made, and then what was copied is cut off at the front. Where the file system can remove a range of
        a file (ext4, XFS), nothing is lost: what the worker appends meanwhile slides to the front. The cut is at a
        block's border, so mostly within a line. Elsewhere the file is truncated right after the read that found its
        end, and what the worker writes between those two system calls is lost.
        """
        try:
            if self.path.stat().st_size < self.rotate_at:
                return
        except FileNotFoundError:  # someone removed it; the worker writes on into the file that has no name
            return
        copy = self.path.with_name(self.path.name + ".copy")
        try:
            with self.path.open("r+b", buffering=0) as log, os.fdopen(private(str(copy)), "wb") as old:
                _move(log, old)
            self._shift()
            copy.replace(self._older(1))
            self.rotate_at = self.limit_bytes
        except OSError as error:  # most likely the disk is full: the log stays whole, and we try again much later
            with contextlib.suppress(FileNotFoundError):
                copy.unlink()
            self.rotate_at += self.limit_bytes
            complain(f"cannot rotate {self.path}: {error}")

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _shift(self) -> None:
        for number in range(self.keep - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                self._older(number).replace(self._older(number + 1))


def _move(log: IO[bytes], old: IO[bytes]) -> None:
    """Move the content of a file that others append to into another file."""
    _copy(log, old)
    # A range must be whole blocks and may not reach the end of the file.
    block = os.fstat(log.fileno()).st_blksize
    whole_blocks = (old.tell() - 1) // block * block
    if _collapse(log.fileno(), whole_blocks):
        old.truncate(whole_blocks)
        return
    _copy(log, old)
    os.ftruncate(log.fileno(), 0)


def _copy(source: IO[bytes], target: IO[bytes]) -> None:
    """Copy to the end of the source, so that the copy is safe when that is reached."""
    while data := source.read(CHUNK_BYTES):
        target.write(data)
        target.flush()


def _collapse(descriptor: int, length: int) -> bool:
    """Remove the first `length` bytes of a file; False when this file system cannot."""
    libc = ctypes.CDLL(None)
    done = libc.fallocate(descriptor, FALLOC_FL_COLLAPSE_RANGE, ctypes.c_int64(0), ctypes.c_int64(length))
    return bool(done == 0)


def complain(text: str) -> None:
    """Say it in the unit's log, which is the shepherd's stderr. A full disk must not end the shepherd."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"dsv4ctl shepherd: {text}\n")
        sys.stderr.flush()
