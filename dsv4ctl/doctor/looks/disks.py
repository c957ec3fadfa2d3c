"""The file systems that a stack writes to, and the one that has its model."""

import posixpath
import shlex
from dataclasses import dataclass

from dsv4ctl.doctor.asking import Question
from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.looks.plan import flag
from dsv4ctl.state import DIRECTORY_NAME

NAME = "df"

# Each path by what is there of it. $HOME and XDG_STATE_HOME are those of the user who would start the stack.
_SCRIPT = r"""
root=$1
case $XDG_STATE_HOME in /*) state=$XDG_STATE_HOME ;; *) state=${HOME:+$HOME/.local/state} ;; esac
tell() {
    path=$2
    case $path in "~/"*) path=$HOME/${path#"~/"} ;; esac
    there=$root$path
    while [ ! -e "$there" ] && [ "$there" != "${there%/*}" ]; do there=${there%/*}; done
    echo "use $1 $path"
    df -Pk "${there:-/}" | tail -n1
    findmnt -nro OPTIONS -T "${there:-/}" 2>/dev/null || echo unknown
}
"""
_STATE = 'tell state "$state/DIRECTORY"'.replace("DIRECTORY", DIRECTORY_NAME)
_CACHE = '[ -z "$HOME" ] || tell cache "$HOME/.cache"'


@dataclass(frozen=True)
class Use:
    """A directory of the stack, what it is for, and its file system. `read_only` is None where nobody tells."""

    purpose: str
    path: str
    mount: str
    free_bytes: int
    read_only: bool | None


def disks_question(patient: Patient) -> tuple[Question, ...]:
    """What to ask about the directories that a plan uses: state, temporary files, caches of compiled kernels, model."""
    entry = patient.profile.hosts.get(patient.host)
    own_state = entry.state_dir if entry is not None else None
    asked = [f"tell state {shlex.quote(own_state)}" if own_state else _STATE]
    # Each worker has a directory of its own there, which is made at its start.
    made_in = [posixpath.dirname(worker.env["TMPDIR"]) for worker in patient.workers if "TMPDIR" in worker.env]
    temporary = dict.fromkeys(made_in)
    asked += [f"tell temporary {shlex.quote(path)}" for path in temporary]
    if patient.engines:
        asked.append(_CACHE)
    models = dict.fromkeys(path for worker in patient.engines if (path := flag(worker, "model-path")))
    asked += [f"tell model {shlex.quote(path)}" for path in models]
    return (Question(NAME, "\n".join([_SCRIPT, *asked, ":"])),)


def disks(patient: Patient) -> tuple[Use, ...]:
    """Raises:
    Unseen
    """
    return patient.box.read(NAME, parse_disks)


def parse_disks(text: str) -> tuple[Use, ...]:
    """Raises:
    ValueError, IndexError
    """
    found = []
    lines = text.splitlines()
    if len(lines) % 3:
        raise ValueError("a file system in less than three lines")
    for at in range(0, len(lines), 3):
        head, numbers, options = lines[at : at + 3]
        kind, purpose, path = head.split(" ", 2)
        if kind != "use":
            raise ValueError(f"unknown line {head!r}")
        words = numbers.split()
        read_only = None if options == "unknown" else options.split(",")[0] == "ro"
        found.append(Use(purpose, path, " ".join(words[5:]), int(words[3]) * 1024, read_only))
    return tuple(found)
