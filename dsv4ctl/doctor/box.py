"""One host as it was found: the answers to all questions, and what is to run there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from dsv4ctl.doctor.asking import Answer

if TYPE_CHECKING:
    from dsv4ctl.profile.schema import Profile
    from dsv4ctl.stack import Worker

T = TypeVar("T")


class Unseen(Exception):
    """Something could not be looked at, and why: a sentence without the host's name. `remedy` says how it could be, and
    is empty where there is nothing better than to look by hand."""

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.remedy = remedy


AS_ROOT = "run it as root, who alone may see that"
"""What to do where the kernel shows something to root alone."""

# How the failure of a question goes, and what can be done about it.
_REMEDIES = (
    ("no answer within", "look by hand what holds it up, in `dmesg` and with the same question, and run it again"),
    ("there is no nvidia-smi", "install NVIDIA's driver there, or choose a profile for that machine"),
    ("connect to bus", "`loginctl enable-linger` starts the user's systemd manager; or take the process supervisor"),
    ("Permission denied", AS_ROOT),
)


@dataclass(frozen=True)
class Box:
    """What a host answered, by the question's name."""

    answers: Mapping[str, Answer]
    _read: dict[str, object] = field(default_factory=dict, compare=False, repr=False)

    def text(self, question: str) -> str:
        """Raises:
        Unseen: there is no answer.
        """
        answer = self.answers.get(question)
        if answer is None:
            raise Unseen(f"{question} was not asked")
        if answer.failure:
            remedy = next((remedy for words, remedy in _REMEDIES if words in answer.failure), "")
            raise Unseen(f"{question}: {answer.failure}", remedy)
        return answer.text

    def read(self, question: str, parse: Callable[[str], T]) -> T:
        """The answer as `parse` makes it of its text, made once.

        Raises:
            Unseen: there is no answer, or it is not understood.
        """
        if question not in self._read:
            try:
                self._read[question] = parse(self.text(question))
            except (ValueError, IndexError, KeyError) as error:
                raise Unseen(f"{question}: the answer is not understood ({error})") from error
        found: T = self._read[question]  # type: ignore[assignment]
        return found


@dataclass(frozen=True)
class Patient:
    """A host and what a profile has in mind for it. `workers` are those planned on it, the router included."""

    host: str
    box: Box
    profile: "Profile"
    workers: "Sequence[Worker]"

    @property
    def engines(self) -> "tuple[Worker, ...]":
        """The planned workers that run SGLang."""
        return tuple(worker for worker in self.workers if worker.role != "router")
