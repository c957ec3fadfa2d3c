"""Many small questions to a host in one round trip, each with its own deadline.

They all run at the same time. A program that hangs in the kernel (nvidia-smi on a GPU that has fallen off the bus) can
not even be killed, so nobody waits for it: what has not answered by its deadline is told to be silent, and the others
are not held up.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4ctl.errors import DeadlineExceeded, OperationFailed
from dsv4ctl.hosts.command import last_lines

if TYPE_CHECKING:
    from dsv4ctl.hosts.base import Host

ANSWER_WITHIN_S = 1.5
LONGEST_ANSWER = 1 << 20
"""In bytes. What is longer is cut off there, and is no answer."""

_MARGIN_S = 10.0
_GRACE_S = 0.3
_NAMED = 3
# $1 is the root of the file system that is looked at; then number, deadline, the same with its grace in hundredths of a
# second, and script of each question. Answers lie in a directory of this run's own until all are there; it is removed
# as well where the run is ended, or nobody is there to read them any more. A file may not grow beyond the longest
# answer: what would write more gets an error, and no signal, which would leave a core dump. At its deadline a question
# is killed, children and all: with SIGTERM first, a child that ignores it would outlive its parent, and `timeout` too.
_SCRIPT = r"""
root=$1; shift
dir=$(mktemp -d "${TMPDIR:-/tmp}/dsv4-doctor.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM PIPE
numbers= waits=
while [ $# -gt 0 ]; do
    numbers="$numbers $1" waits="$waits $1:$3"
    : >"$dir/$1.out" >"$dir/$1.err"
    (
        (
            trap '' XFSZ
            ulimit -f BLOCKS
            exec timeout -s KILL "$2" sh -c "$4" sh "$root" >"$dir/$1.out" 2>"$dir/$1.err" </dev/null
        )
        echo $? >"$dir/$1.now" && mv "$dir/$1.now" "$dir/$1.status"
    ) >/dev/null 2>&1 </dev/null &
    shift 4
done
waited=0
while :; do
    missing=
    for each in $waits; do
        [ -f "$dir/${each%:*}.status" ] || [ "$waited" -ge "${each#*:}" ] || missing=yes
    done
    [ -n "$missing" ] || break
    sleep 0.03
    waited=$((waited + 3))
done
size_of() {
    size=0
    [ ! -s "$1" ] || size=$(($(wc -c <"$1")))
    [ "$size" -le LONGEST ] || size=LONGEST
}
for number in $numbers; do
    status=silent out=0 err=0
    [ -f "$dir/$number.status" ] && read -r status <"$dir/$number.status"
    # Of a silent one nothing is told: it may still be writing, and the size would be another by then.
    case $status in silent) ;; *) size_of "$dir/$number.out"; out=$size ;; esac
    case $status in silent | 0) ;; *) size_of "$dir/$number.err"; err=$size ;; esac
    printf '%s %s %s %s\n' "$number" "$status" "$out" "$err"
    [ "$out" = 0 ] || head -c "$out" "$dir/$number.out"
    [ "$err" = 0 ] || head -c "$err" "$dir/$number.err"
done
""".replace("LONGEST", str(LONGEST_ANSWER)).replace("BLOCKS", str(LONGEST_ANSWER // 512))
_TIMED_OUT = frozenset({"124", "137", "silent"})


@dataclass(frozen=True)
class Question:
    """A question to a host: a POSIX shell script, which finds the root of the file system to look at in `$1`.

    It has to end with status 0 when it could look, also where there was nothing to see. Else the last line of what it
    wrote says why, on stderr or, where that is empty, on stdout.
    """

    name: str
    script: str
    within_s: float = ANSWER_WITHIN_S


@dataclass(frozen=True)
class Answer:
    """What came: its text, or why there is none (`failure` is a sentence without the host's name)."""

    text: str
    failure: str = ""


def ask(host: "Host", questions: Iterable[Question], *, root: str = "") -> Mapping[str, Answer]:
    """Ask them all at once. `root` is put before every path that they look at: empty, but for recorded trees.

    Raises:
        OperationFailed: the host has no shell, or nowhere to put a file.
        HostUnreachable, DeadlineExceeded
    """
    asked = tuple(questions)
    longest_s = max((question.within_s for question in asked), default=0.0) + _GRACE_S
    words: list[str] = []
    for at, each in enumerate(asked):
        words += [str(at), f"{each.within_s:g}", str(int((each.within_s + _GRACE_S) * 100)), each.script]
    try:
        done = host.run(["sh", "-c", _SCRIPT, "sh", root, *words], deadline_s=longest_s + _MARGIN_S, check=False)
    except DeadlineExceeded as error:
        names = ", ".join(question.name for question in asked[:_NAMED])
        more = f" and {len(asked) - _NAMED} more" if len(asked) > _NAMED else ""
        what = f"{host.name} did not answer within {longest_s + _MARGIN_S:g} s, asked for {names}{more}"
        raise DeadlineExceeded(what, why="each question has its own deadline there: the host itself is slow") from error
    if done.returncode:
        raise OperationFailed(f"{host.name} cannot be asked anything", why=last_lines(done.stderr))
    try:
        return _parsed(done.stdout, asked)
    except (ValueError, IndexError) as error:
        raise OperationFailed(f"{host.name} answered with something else than was asked", why=str(error)) from error


def _parsed(answer: bytes, asked: Sequence[Question]) -> dict[str, Answer]:
    found = {question.name: Answer("", "it was not asked") for question in asked}
    while answer:
        head, _, answer = answer.partition(b"\n")
        number, status, out, err = head.decode().split(" ")
        question = asked[int(number)]
        text, errors = (part.decode(errors="replace") for part in (answer[: int(out)], answer[int(out) :][: int(err)]))
        answer = answer[int(out) + int(err) :]
        failure = ""
        if status in _TIMED_OUT:
            failure = f"no answer within {question.within_s:g} s"
        elif int(out) >= LONGEST_ANSWER:
            failure = f"the answer is longer than {LONGEST_ANSWER >> 20} MiB"
        elif status != "0":
            said = errors.strip() or text.strip()
            failure = next(reversed(said.splitlines()), f"exit status {status}")
        found[question.name] = Answer(text, failure)
    return found
