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
    """Something could not be looked at, and why: a sentence without the host's name."""


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
            raise Unseen(f"{question}: {answer.failure}")
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
