"""What an engine leaves behind lies in its temporary directory, which whoever starts it can remove (TMPDIR)."""

import os
import tempfile
from typing import Any

LOAD_FILE = "sglang.srt.managers.load_snapshot.shm_path_for"
"""Where a scheduler publishes its load for the HTTP server of its engine: a file in /dev/shm that SGLang never removes."""


def in_temporary_directory(path: str, *_: Any) -> str:
    """The same file in the temporary directory."""
    return os.path.join(tempfile.gettempdir(), os.path.basename(path))  # noqa: PTH118, PTH119  SGLang wants a str
