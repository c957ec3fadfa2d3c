"""What an engine leaves behind lies in its temporary directory, which whoever starts it can remove (TMPDIR)."""

import os
import tempfile

from serving.untyped import Untyped

LOAD_FILE = "sglang.srt.managers.load_snapshot.shm_path_for"
"""Where a scheduler publishes its load for the HTTP server of its engine: in /dev/shm, and SGLang never removes it."""


def in_temporary_directory(path: str, *_: Untyped) -> str:
    """The same file in the temporary directory."""
    return os.path.join(tempfile.gettempdir(), os.path.basename(path))  # noqa: PTH118, PTH119  SGLang wants a str
