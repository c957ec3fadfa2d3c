"""What a worker's log says: which phase of its start it is in, and the first error, not the last line of a cascade."""

import re
from dataclasses import dataclass
from enum import Enum, auto

# In the order in which an engine of SGLang 0.5.23 logs them. The text is what it waits for once the line was seen.
_PHASES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), waits_for)
    for pattern, waits_for in (
        (r"imports done in|server_args=ServerArgs\(", "its processes"),
        (r"Init torch distributed begin", "the other ranks"),
        (r"Load weight begin", "the weights"),
        (r"Load weight end", "the KV pool"),
        (r"KV Cache is allocated|max_total_num_tokens=", "the KV transfer engine"),
        (r"NIXL KVManager initialized", "the HTTP server"),
        (r"Uvicorn running on", "its warm-up request"),
        (r"The server is fired up", ""),
    )
)

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Timeout)?(?::.*|$)")
_PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\]\s*")
_ERROR_LINE = re.compile(
    r"^(?:[\w .-]+: error: .+|error: .+|(?:ERROR|CRITICAL|FATAL)\b.*|thread '.+' panicked at .+"
    r"|Subprocess .+ crashed with exit code .*|.*\b(?:Segmentation fault|Bus error|Out of memory|Killed)\b.*)",
    re.IGNORECASE,
)
# SGLang 0.5.23 logs that its port is taken and then waits for ever for its own server to answer.
_FATAL = re.compile(r"\[Errno 98\]")
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_KILLED_BY_ITSELF = "Received sigquit from a child process"


@dataclass(frozen=True)
class FirstError:
    """The first thing that went wrong in a log: what it said, where in the code, and the log's own line number.

    For exceptions that Python chained it is the last of the chain, which says it in the words of whoever knew what it
    was about; `caused_by` is the first of the chain.
    """

    message: str
    where: str | None
    line_number: int
    caused_by: str | None = None

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        cause = f"; caused by {self.caused_by}" if self.caused_by else ""
        return f"{self.message}{where}{cause}"


class _Seeking(Enum):
    """What the reader of a log is in the middle of."""

    ERROR = auto()
    END_OF_TRACEBACK = auto()
    LINK_OF_CHAIN = auto()
    NOTHING = auto()


class LogDigest:
    """Reads a log line by line, once, and keeps what is worth knowing. `fatal`: this start cannot succeed any more,
    although the process goes on."""

    def __init__(self) -> None:
        self._line_number = 0
        self._phase = -1
        self._first_error: FirstError | None = None
        self._seeking = _Seeking.ERROR
        self._frame: str | None = None
        self._error_at = 0
        self._linked = False
        self.last_line = ""
        self.fatal = False

    @property
    def waits_for(self) -> str:
        """What the worker waits for, as far as its log tells; empty once it says that it is up."""
        return "its imports" if self._phase < 0 else _PHASES[self._phase][1]

    @property
    def first_error(self) -> FirstError | None:
        return self._first_error

    def feed(self, line: str) -> None:
        """Take the next line of the log."""
        self._line_number += 1
        text = _PREFIX.sub("", _COLOUR.sub("", line).rstrip())
        if text:
            self.last_line = text
        if not self.fatal and _FATAL.search(text):
            self.fatal = True
            self._first_error = FirstError(text, None, self._line_number)
            self._seeking = _Seeking.NOTHING
        for index in range(self._phase + 1, len(_PHASES)):
            if _PHASES[index][0].search(text):
                self._phase = index
        if self._seeking is _Seeking.ERROR:
            self._seek_error(text)
        elif self._seeking is _Seeking.END_OF_TRACEBACK:
            self._seek_end_of_traceback(text)
        elif self._seeking is _Seeking.LINK_OF_CHAIN:
            self._seek_link_of_chain(text)

    def _seek_error(self, text: str) -> None:
        # A prefix may stand before the word Traceback, with a message of its own in front of it.
        if text.endswith(_TRACEBACK):
            self._error_at = self._line_number
            self._seeking = _Seeking.END_OF_TRACEBACK
        elif _ERROR_LINE.match(text) and _KILLED_BY_ITSELF not in text:
            self._first_error = FirstError(text, None, self._line_number)
            self._seeking = _Seeking.NOTHING

    def _seek_end_of_traceback(self, text: str) -> None:
        if frame := _FRAME.match(text):
            self._frame = f"{_short(frame['file'])}:{frame['line']} in {frame['function']}"
        elif text and not text[0].isspace() and _EXCEPTION.match(text):
            first = self._first_error
            cause = (first.caused_by or first.message) if first is not None else None
            self._first_error = FirstError(text, self._frame, self._error_at, cause)
            self._linked, self._frame = False, None
            self._seeking = _Seeking.LINK_OF_CHAIN

    def _seek_link_of_chain(self, text: str) -> None:
        if text in _CHAINED:
            self._linked = True
        elif text == _TRACEBACK and self._linked:
            self._seeking = _Seeking.END_OF_TRACEBACK
        elif text:
            self._seeking = _Seeking.NOTHING


def _short(path: str) -> str:
    """A path from the package on, so that a message is not filled by the way to site-packages."""
    _, found, rest = path.rpartition("/site-packages/")
    return rest if found else path


def digest(text: str) -> LogDigest:
    """The digest of a whole log."""
    result = LogDigest()
    for line in text.splitlines():
        result.feed(line)
    return result
