"""`python -m serving ...` with the engine's interpreter, in the environment of a worker and in no other."""

import json
from collections.abc import Iterable, Mapping

# What a shell has set must not colour the answer, and secrets are no arguments: the variables come on stdin, and
# replace all but what finds the interpreter's files.
_IN_THAT_ENVIRONMENT = """
import json, os, runpy, sys
kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
os.environ.clear()
os.environ.update(kept | json.load(sys.stdin))
runpy.run_module("serving", run_name="__main__", alter_sys=True)
"""


def serving_argv(python: str, words: Iterable[str]) -> list[str]:
    """The command that runs it; `serving_input` is what it reads."""
    return [python, "-c", _IN_THAT_ENVIRONMENT, *words]


def serving_input(env: Mapping[str, str]) -> bytes:
    """The environment, for standard input."""
    return json.dumps(dict(env)).encode()
