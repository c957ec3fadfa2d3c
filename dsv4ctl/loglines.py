"""What a worker's log says: which phase of its start it is in, and the first error, not the last line of a cascade."""

import re
from dataclasses import dataclass

# In the order in which SGLang 0.5.23 logs them. The text is what the worker waits for once the line was seen.
_PHASES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), waits_for)
    for pattern, waits_for in (
        (r"server_args=ServerArgs\(", "the scheduler's processes"),
        (r"Init torch distributed begin", "the other ranks"),
        (r"Load weight begin", "the weights"),
        (r"Load weight end", "the KV pool"),
        (r"KV Cache is allocated|max_total_num_tokens=", "the KV transfer engine"),
        (r"Backend UCX was instantiated|NIXL KVManager initialized", "the HTTP server"),
        (r"Started server process|Uvicorn running on", "its warm-up request"),
        (r"The server is fired up", ""),
    )
)

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Timeout)?(?::.*|$)")
_PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\]\s*")
_ERROR_LINE = re.compile(
    r"^(?:\S+: error: .+|(?:ERROR|CRITICAL|FATAL)\b.*|.*\b(?:Segmentation fault|Bus error|Out of memory|Killed)\b.*"
    r"|error: .+|thread '.+' panicked at .+)",
    re.IGNORECASE,
)
_KILLED_BY_ITSELF = "Received sigquit from a child process"


@dataclass(frozen=True)
class FirstError:
    """The first thing that went wrong in a log: what it said, where in the code, and the log's own line number."""

    message: str
    where: str | None
    line_number: int


class LogDigest:
    """Reads a log line by line, once, and keeps the two things worth knowing."""

    def __init__(self) -> None:
        self._line_number = 0
        self._phase = -1
        self._first_error: FirstError | None = None
        self._frame: str | None = None
        self._in_traceback = False
        self._traceback_at = 0
        self.last_line = ""

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
        text = _PREFIX.sub("", line.rstrip())
        if text:
            self.last_line = text
        for index in range(self._phase + 1, len(_PHASES)):
            if _PHASES[index][0].search(text):
                self._phase = index
        if self._first_error is None:
            self._look_for_error(text)

    def _look_for_error(self, text: str) -> None:
        # A log prefix may stand before the word Traceback, with a message of its own in front of it.
        if text.endswith(_TRACEBACK):
            self._in_traceback = True
            self._traceback_at = self._line_number
            self._frame = None
            return
        if self._in_traceback:
            frame = _FRAME.match(text)
            if frame:
                self._frame = f"{_short(frame['file'])}:{frame['line']} in {frame['function']}"
            elif text and not text[0].isspace() and _EXCEPTION.match(text):
                self._in_traceback = False
                self._first_error = FirstError(text, self._frame, self._traceback_at)
            return
        if _ERROR_LINE.match(text) and _KILLED_BY_ITSELF not in text:
            self._first_error = FirstError(text, None, self._line_number)


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
