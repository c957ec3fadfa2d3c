"""Mooncake's engine is linked against libibverbs, also where it moves KV over TCP and no RDMA device exists."""

import ctypes
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

LIBRARY = "libibverbs.so.1"


def provide() -> None:
    """Start this process again with NIXL's own copy of the library on the search path, if the machine has none.

    The dynamic linker reads LD_LIBRARY_PATH once, when a process starts.
    """
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        directory = Path(tempfile.mkdtemp(prefix="verbs"))
        for copy in _libraries_of_nixl().glob("lib*.so.*"):
            if copy.name.startswith("libnl-"):
                (directory / copy.name).symlink_to(copy)
            elif copy.name.startswith("libibverbs-"):
                (directory / LIBRARY).symlink_to(copy)
        if not (directory / LIBRARY).exists():
            raise SystemExit(
                f"dsv4: Mooncake needs {LIBRARY}, and neither this machine nor its NIXL wheel has it: "
                "install libibverbs1, or use NIXL"
            ) from None
        search = [str(directory), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        os.environ["LD_LIBRARY_PATH"] = ":".join(search)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  there is no shell, on purpose


def _libraries_of_nixl() -> Path:
    spec = importlib.util.find_spec("nixl_cu12")
    root = Path(spec.origin).parent if spec and spec.origin else Path("nixl_cu12")
    return root.with_name("nixl_cu12.libs")
