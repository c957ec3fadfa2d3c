"""A tiny model on disk: written whole or not at all, and only where nothing else is."""

import os
import shutil
import tempfile
from pathlib import Path

from serving.cpu.tiny_model.contents import files
from serving.cpu.tiny_model.weights import Variant


class TinyModelError(Exception):
    """The model could not be written where it was wanted."""


def _same(directory: Path, contents: dict[str, bytes]) -> bool:
    return all(
        (file := directory / name).is_file() and file.stat().st_size == len(data) and file.read_bytes() == data
        for name, data in contents.items()
    )


def write_model(directory: Path, variant: Variant) -> bool:
    """Make `directory` hold the model; true if it had to be written, false if it was complete already.

    The model appears whole or not at all: it is written beside `directory` and renamed. A directory that holds
    anything but a model of this module is left alone.

    Raises:
        TinyModelError: `directory` is a file or holds something else.
        OSError: the disk is full or not writable; nothing is left behind.
    """
    contents = files(variant)
    if _same(directory, contents):
        return False
    if directory.exists():
        if not directory.is_dir():
            raise TinyModelError(f"{directory} is a file, not a model directory: left as it is")
        if strangers := sorted({path.name for path in directory.iterdir()} - set(contents)):
            raise TinyModelError(f"{directory} holds {strangers[0]}, which is not part of a tiny model: left as it is")
    directory.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        for name, data in contents.items():
            with (fresh / name).open("xb") as file:
                file.write(data)
                os.fsync(file.fileno())
        fresh.chmod(0o755)
        if directory.exists():
            shutil.rmtree(directory)
        try:
            fresh.rename(directory)
        except OSError:
            # Another process made the same model at the same moment.
            if not _same(directory, contents):
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return True
