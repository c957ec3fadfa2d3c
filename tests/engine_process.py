"""Questions to the real classes of SGLang, in a process of their own: they take ten seconds to import."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import serving.cpu

ROOT = Path(__file__).resolve().parents[1]


def answer(module: str, *arguments: str, python: str = sys.executable, within_s: float = 500) -> dict[str, Any]:
    """What `python -m tests.MODULE` says as JSON with the SGLang of that interpreter."""
    standins = Path(serving.cpu.__file__).parent / "standins"
    done = subprocess.run(
        [python, "-m", f"tests.{module}", *arguments],
        env={**os.environ, "PYTHONPATH": str(standins), "SGLANG_USE_CPU_ENGINE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert isinstance(said, dict)
    return said
