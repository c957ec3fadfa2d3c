"""Files in /dev/shm that engines make, and who still uses them."""

from dataclasses import dataclass

from dsv4ctl.doctor.asking import Question
from dsv4ctl.doctor.box import Box

NAMES = (
    *("sgl_shm_*", "sglang_*", "multi_tokenizer_args_*", "psm_*", "vllm_offload_*", "nccl-*", "cuda.shm.*", "torch_*"),
    *("ucx_shm_*", "sem.loky-*", "sem.mp-*"),
)
"""How SGLang, vLLM, Python's multiprocessing, NCCL, CUDA, PyTorch and UCX name what they put there (the first ones
and those of NCCL, CUDA and loky: sglang/srt/utils/stale_shm_cleanup.py of 0.5.23)."""

_DIRECTORY = "/dev/shm"  # noqa: S108 - it is looked at, and nothing is made there

INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""Of the machine itself (PROC_PID_INIT_INO in the kernel). In another one some processes cannot be seen at all."""

# Four answers with NUL behind each record: who we are, the files that are older than a minute (a younger one may be on
# its way to its first user), what processes have open, what they have mapped.
LEFTOVERS = Question(
    "files in /dev/shm",
    r"""
export LC_ALL=C
blind=no
for process in "$1"/proc/[0-9]*; do [ -r "$process/fd" ] || { [ ! -d "$process" ] || blind=yes; }; done
[ "$(readlink "$1/proc/self/ns/pid")" = "INITIAL" ] || blind=elsewhere
printf '%s %s\0' "$(id -u)" "$blind"
find "$1/dev/shm" -xdev -type f -mmin +1 \( NAMES \) -printf '%s %U %m %f\0' || exit 1; printf '%s\0' --
find "$1"/proc/[0-9]*/fd -lname '/dev/shm/*' -printf '%l\0' 2>/dev/null; printf '%s\0' --
grep -ho '/dev/shm/.*' "$1"/proc/[0-9]*/maps 2>/dev/null | tr '\n' '\0'
:
""".replace("INITIAL", INITIAL_PID_NAMESPACE).replace("NAMES", " -o ".join(f"-name '{name}'" for name in NAMES)),
)


@dataclass(frozen=True)
class ShmFile:
    """A file that nobody was seen using. `certain`: nobody can be using it unseen."""

    name: str
    size_bytes: int
    owner: int
    certain: bool


def unused(box: Box) -> tuple[ShmFile, ...]:
    """The files of engines that nobody is seen using.

    Raises:
        Unseen
    """
    return box.read(LEFTOVERS.name, parse_leftovers)


def parse_leftovers(text: str) -> tuple[ShmFile, ...]:
    """Raises:
    ValueError, IndexError
    """
    records = text.split("\0")
    own, blind = records[0].split(" ")
    first = records.index("--")
    second = records.index("--", first + 1)
    users = {path.removesuffix(" (deleted)") for path in (*records[first + 1 : second], *records[second + 1 :])}
    found = []
    for record in records[1:first]:
        size, owner, mode, name = record.split(" ", 3)
        if f"{_DIRECTORY}/{name}" in users:
            continue
        # Where others are hidden from us: nobody but its owner and root can open a file that is private to its owner.
        private = owner == own and int(mode, 8) & 0o077 == 0
        certain = blind == "no" or (blind == "yes" and private)
        found.append(ShmFile(name, int(size), int(owner), certain))
    return tuple(sorted(found, key=lambda file: file.name))
