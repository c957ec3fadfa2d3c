"""A chat completion while it comes in, as a stream of events or as one document; and what it is worth."""

import json
import re
from collections.abc import Mapping
from typing import Any

from dsv4ctl.probe.outcome import Outcome

_GOOD_REASONS = frozenset({"stop", "length"})
_DONE = "[DONE]"
_BOM = b"\xef\xbb\xbf"
# A carriage return at the end of what has come may be half of a line's end.
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
_SHOWN = 160
# An answer that ends in the same few characters over and over; a line of dashes is shorter than this, and so is what
# the tiny model, which always goes on, has room for behind a right answer.
_UNIT = 12
_REPEATED_CHARACTERS = 40
_REPEATS = 4


class Reading:
    """Takes the bytes of a body. `events`: it comes as server-sent events."""

    def __init__(self, *, events: bool) -> None:
        self.events = events
        self.text = ""
        self.reasoning = ""
        self.reason: str | None = None
        self.error: str | None = None
        self.strange: str | None = None
        self.done = False
        self.comments = 0
        self.documents = 0
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.meta: Mapping[str, Any] = {}
        self._buffer = b""
        self._at_start = True
        self._data: list[str] = []

    @property
    def begun(self) -> bool:
        """Whether a part of the answer has come."""
        return bool(self.text or self.reasoning)

    def feed(self, data: bytes) -> bool:
        """Take some bytes; True when they brought an event, and not only comments or a part of one."""
        self._buffer += data
        if not self.events:
            return False
        if self._at_start and len(self._buffer) >= len(_BOM):
            self._buffer = self._buffer.removeprefix(_BOM)
            self._at_start = False
        before = self.documents
        *lines, self._buffer = _LINE_END.split(self._buffer)
        for line in lines:
            self._line(line.decode(errors="replace"))
        return self.documents > before

    def end(self) -> None:
        """The body is over."""
        rest, self._buffer = self._buffer.removeprefix(_BOM).decode(errors="replace"), b""
        if self.events:
            self._line(rest.rstrip("\r"))
            self._event()
        else:
            self._document(rest)

    def _line(self, line: str) -> None:
        """A line of a stream, as the HTML standard has them: the data of an event may be on several lines, and an empty
        line ends it."""
        if not line:
            self._event()
        elif line.startswith(":"):
            self.comments += 1
        elif line.startswith("data:"):
            self._data.append(line[5:].removeprefix(" "))

    def _event(self) -> None:
        if not self._data:
            return
        content = "\n".join(self._data).strip()
        self._data.clear()
        self.documents += 1
        if content == _DONE:
            self.done = True
        else:
            self._document(content)

    def _document(self, content: str) -> None:
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            self.strange = self.strange or content[:_SHOWN]
            return
        if not isinstance(document, dict):
            self.strange = self.strange or content[:_SHOWN]
        elif document.get("error") or document.get("object") == "error":
            self.error = self.error or content[:_SHOWN]
        else:
            self._completion(document, content)

    def _completion(self, document: Mapping[str, Any], content: str) -> None:
        try:
            usage = document.get("usage") or {}
            self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt_tokens)
            self.completion_tokens = _count(usage.get("completion_tokens"), self.completion_tokens)
            for choice in document["choices"]:
                part = choice.get("delta") or choice.get("message") or {}
                self.text += part.get("content") or ""
                self.reasoning += part.get("reasoning_content") or ""
                self.reason = _reason(choice.get("finish_reason")) or self.reason
                meta = choice.get("meta_info")
                self.meta = meta if isinstance(meta, dict) and meta else self.meta
        except (KeyError, TypeError, AttributeError):
            self.strange = self.strange or content[:_SHOWN]


def _count(value: object, otherwise: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _reason(value: object) -> str | None:
    """A finish reason in a word; SGLang's own form is an object with a type."""
    if isinstance(value, Mapping):
        value = value.get("type")
    return None if value is None else str(value)[:_SHOWN]


def judge(reading: Reading, answer: str | None) -> tuple[Outcome, str]:
    """What a body that came to its end is worth, and the particulars. `answer` is what has to be in it; None: anything.

    A right answer in the model's reasoning proves the same as one after it.
    """
    said = reading.text or reading.reasoning
    if reading.error is not None:
        return Outcome.ERROR_IN_200, f"an error inside a 200: {reading.error}"
    if reading.reason is not None and reading.reason not in _GOOD_REASONS:
        return Outcome.ERROR_IN_200, f"finish reason {reading.reason!r} inside a 200"
    if reading.strange is not None:
        return Outcome.NO_COMPLETION, f"not a chat completion: {reading.strange!r}"
    if reading.events and not reading.done:
        so_far = f"after {len(said)} characters" if said else "before any text"
        reason = "" if reading.reason else " and without a finish reason"
        return Outcome.ENDED_EARLY, f"the stream ended {so_far} without [DONE]{reason}"
    if reading.reason is None:
        return Outcome.ENDED_EARLY, "the answer ended without a finish reason"
    if answer is None:
        return Outcome.RIGHT, ""
    return _content(reading, answer)


def _content(reading: Reading, answer: str) -> tuple[Outcome, str]:
    said = reading.text or reading.reasoning
    if not said.strip():
        return Outcome.EMPTY, f"no text in {reading.completion_tokens or 'an unknown number of'} tokens"
    unit = repetition(said)
    if unit is not None:
        return Outcome.REPEATS, f"the answer ends in {unit!r} over and over ({len(said)} characters)"
    if answer in reading.text or answer in reading.reasoning:
        return Outcome.RIGHT, ""
    if not reading.text.strip():
        return Outcome.EMPTY, f"only reasoning, {len(reading.reasoning)} characters, and not the answer"
    return Outcome.WRONG, f"expected {answer!r}, got {reading.text.strip()[:60]!r}"


def repetition(text: str) -> str | None:
    """The few characters that a text ends in over and over; None when it does not."""
    text = text.rstrip("\n")
    for size in range(1, _UNIT + 1):
        unit = text[-size:]
        times = max(_REPEATS, -(-_REPEATED_CHARACTERS // size))
        if unit.strip() and text.endswith(unit * times):
            return unit
    return None
