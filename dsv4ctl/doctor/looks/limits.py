"""Limits of the user who starts engines, those of the user's systemd, RDMA devices, and the clock."""

import re
from dataclasses import dataclass

from dsv4ctl.doctor.asking import Question
from dsv4ctl.doctor.box import Box, Patient, Unseen

UNLIMITED = 1 << 63
"""In place of a limit that there is not."""

LIMITS = Question("/proc/self/limits", 'cat "$1/proc/self/limits"')
# An ssh session without a login has no XDG_RUNTIME_DIR, though the manager may be there.
MANAGER_LIMITS = Question(
    "systemctl --user show",
    r"""
export XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-/run/user/$(id -u)}"
systemctl --user show -p DefaultLimitNOFILE -p DefaultLimitNOFILESoft \
    -p DefaultLimitMEMLOCK -p DefaultLimitMEMLOCKSoft
""",
)
RDMA = Question(
    "/sys/class/infiniband",
    'for device in "$1"/sys/class/infiniband/*; do [ ! -e "$device" ] || echo "${device##*/}"; done',
)
CLOCK = Question(
    "timedatectl",
    r"""
if told=$(timedatectl show -p NTPSynchronized --value 2>/dev/null) && [ -n "$told" ]; then
    echo "timedatectl $told"
    exit 0
fi
if told=$(chronyc -n tracking 2>/dev/null); then
    printf '%s\n' "$told" | sed -n 's/^Leap status *: */chrony /p'
    exit 0
fi
echo "neither timedatectl nor chronyc tells" >&2
exit 1
""",
)

_NAMES = {"Max open files": "files", "Max locked memory": "locked"}
_SUFFIX = re.compile(r"(files|bytes) *$")


@dataclass(frozen=True)
class Limits:
    """The soft and the hard limit of open files, and of locked memory in bytes; `UNLIMITED` where there is none."""

    source: str
    files: tuple[int, int]
    locked: tuple[int, int]


def limits_of_engines(patient: Patient) -> Limits:
    """The limits that an engine would be started with, by the profile's supervisor.

    Raises:
        Unseen
    """
    if patient.profile.supervisor == "systemd":
        return patient.box.read(MANAGER_LIMITS.name, parse_manager_limits)
    return patient.box.read(LIMITS.name, parse_limits)


def limits_question(patient: Patient) -> tuple[Question, ...]:
    """Whom to ask for `limits_of_engines`."""
    return (MANAGER_LIMITS if patient.profile.supervisor == "systemd" else LIMITS,)


def rdma_devices(box: Box) -> tuple[str, ...]:
    """Raises:
    Unseen
    """
    return tuple(box.text(RDMA.name).split())


def is_synchronised(box: Box) -> tuple[bool, str]:
    """Whether the clock follows a time server, and who says so.

    Raises:
        Unseen
    """
    source, _, word = box.text(CLOCK.name).strip().partition(" ")
    known = {"yes": True, "no": False, "Normal": True, "Insert second": True, "Delete second": True}
    known["Not synchronised"] = False
    if word not in known:
        raise Unseen(f"{source or 'nobody'} says {word!r} of the clock")
    return known[word], source


def parse_limits(text: str) -> Limits:
    """Raises:
    ValueError, KeyError, IndexError: it is not what the kernel writes.
    """
    found: dict[str, tuple[int, int]] = {}
    for line in text.splitlines():
        for name, ours in _NAMES.items():
            if line.startswith(f"{name} "):
                soft, hard = _SUFFIX.sub("", line.removeprefix(name)).split()
                found[ours] = _limit(soft, "unlimited"), _limit(hard, "unlimited")
    return Limits("the limits of the user", found["files"], found["locked"])


def parse_manager_limits(text: str) -> Limits:
    """Raises:
    ValueError, KeyError
    """
    words = dict(line.partition("=")[::2] for line in text.splitlines())
    pairs = [
        (_limit(words[f"DefaultLimit{name}Soft"], "infinity"), _limit(words[f"DefaultLimit{name}"], "infinity"))
        for name in ("NOFILE", "MEMLOCK")
    ]
    return Limits("the user's systemd manager", pairs[0], pairs[1])


def _limit(word: str, none: str) -> int:
    return UNLIMITED if word == none else int(word)
