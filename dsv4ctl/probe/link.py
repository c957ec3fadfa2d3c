"""Requests to one URL on one connection, kept or made anew, and what became of each."""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import httpcore

from dsv4ctl import __version__
from dsv4ctl.hosts.lost_tunnel import LostWhileReading, LostWhileWriting
from dsv4ctl.printable import printable
from dsv4ctl.probe.outcome import Act, Outcome, Peer, Reply, Times
from dsv4ctl.probe.reading import Reading, judge
from dsv4ctl.probe.wire import MOST_BYTES, Dialler, NoConnection, TooMuch, Wire
from dsv4ctl.redaction import fingerprint

PATH = "/v1/chat/completions"
_OK = 200
_MOMENTS = ("forward_entry_time", "prefill_finished_time", "request_finished_ts")
# However often a server says something, an answer of a few words is over after so many times the patience.
_PATIENCES = 10
# Who gave up within so long of the last byte gave up on something that went on sending.
_STILL_SENDING_S = 0.5
_TEXT_KEPT = 4000
# The words of the HTTP library for a connection that ended within an answer.
_ENDED_TOO_SOON = ("peer closed connection", "Server disconnected", "incomplete")


@dataclass(frozen=True)
class Endpoint:
    """Something that answers chat completions: what it is called, its URL, and who connects to it."""

    name: str
    url: str
    dialler: Dialler = field(repr=False)


@dataclass(frozen=True)
class Ask:
    """One request: the JSON, what has to be in the answer (None: anything), how long nothing may come."""

    body: Mapping[str, object]
    answer: str | None
    patience_s: float
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def stream(self) -> bool:
        """Whether events are asked for."""
        return bool(self.body.get("stream"))


class Link:
    """A connection to an endpoint. It is opened at the first request, and again when it was closed."""

    def __init__(self, endpoint: Endpoint, clock: Callable[[], float] = time.monotonic) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._wire: Wire | None = None
        self._http: httpcore.HTTP11Connection | None = None
        self._nth = 0
        self._idle_since = 0.0
        self._idle_close_s: float | None = None

    def look(self) -> None:
        """Between requests: note when the other side closes."""
        if self._wire is not None and self._idle_close_s is None and self._wire.ended():
            self._idle_close_s = self._clock() - self._idle_since

    def hurry(self, within_s: float) -> None:
        """From another thread: the answer that is awaited matters no more after so many seconds."""
        wire = self._wire
        if wire is not None:
            wire.limit = self._clock() + within_s

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
        self._wire = self._http = None

    def ask(self, ask: Ask) -> Reply:
        """Send a request and read its answer to the end, or until nothing has come for as long as it says.

        A connection that the other side closed while it lay idle is replaced, as every good client does; the reply
        tells. One that fails is closed.
        """
        self.look()
        idle_close_s, self._idle_close_s = self._idle_close_s, None
        if idle_close_s is not None:
            self.close()
        began = self._clock()
        connect_s: float | None = None
        if self._wire is None or self._http is None:
            try:
                self._wire = self._endpoint.dialler.connect(self._endpoint.url, ask.patience_s)
            except NoConnection as error:
                outcome = Outcome.NO_CONNECTION if error.refused else Outcome.UNSEEN
                return Reply(outcome, str(error), Times(ended_s=self._clock() - began), Peer(Act.NONE))
            connect_s = self._clock() - began
            self._http = httpcore.HTTP11Connection(httpcore.URL(self._endpoint.url).origin, self._wire)
            self._nth = 0
        self._nth += 1
        request = _Request(ask, self._endpoint, self._wire, self._http, began, self._clock)
        try:
            reply = replace(request.send(connect_s, idle_close_s), nth=self._nth)
        except BaseException:
            self.close()
            raise
        self._idle_since = self._clock()
        if not self._http.is_idle():
            self.close()
        return reply


class _Request:
    """One request on its way."""

    def __init__(
        self,
        ask: Ask,
        endpoint: Endpoint,
        wire: Wire,
        http: httpcore.HTTP11Connection,
        began: float,
        clock: Callable[[], float],
    ) -> None:
        self._ask = ask
        self._endpoint = endpoint
        self._wire = wire
        self._http = http
        self._began = began
        self._clock = clock
        self._reading = Reading(events=ask.stream)
        self._status: int | None = None
        self._first_token_at: float | None = None

    def send(self, connect_s: float | None, idle_close_s: float | None) -> Reply:
        """Send it, read its answer, and say what it came to."""
        self._wire.begin(self._clock() + self._ask.patience_s, self._began + _PATIENCES * self._ask.patience_s)
        error: Exception | None = None
        try:
            self._exchange()
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError) as raised:
            error = raised
        outcome, detail = self._verdict(error)
        detail = self._without_key(printable(detail))
        times = Times(
            connect_s=connect_s,
            first_byte_s=self._since(self._wire.first_byte_at),
            first_token_s=self._since(self._first_token_at),
            last_byte_s=self._since(self._wire.last_byte_at),
            ended_s=self._clock() - self._began,
        )
        peer = Peer(
            self._act(error), self._wire.received_bytes, self._wire.acknowledged, idle_close_s, self._wire.direct
        )
        reading = self._reading
        return Reply(
            outcome,
            detail,
            times,
            peer,
            text=self._without_key(_encodable((reading.text or reading.reasoning)[:_TEXT_KEPT])),
            prompt_tokens=reading.prompt_tokens,
            completion_tokens=reading.completion_tokens,
            engine_s=_engine_times(reading.meta),
        )

    def _without_key(self, text: str) -> str:
        """Proxies say which key they do not know."""
        key = self._ask.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        return text.replace(key, fingerprint(key)) if key else text

    def _exchange(self) -> None:
        content = json.dumps(self._ask.body, ensure_ascii=False).encode()
        parts = urlsplit(self._endpoint.url)
        headers = {
            "Host": parts.netloc,
            "User-Agent": f"dsv4ctl/{__version__} probe",
            "Accept": "text/event-stream" if self._ask.stream else "application/json",
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            **self._ask.headers,
        }
        request = httpcore.Request(
            "POST",
            self._endpoint.url + PATH,
            headers=[(name.encode(), value.encode()) for name, value in headers.items()],
            content=content,
        )
        response = self._http.handle_request(request)
        try:
            self._status = response.status
            kinds = [value for name, value in response.headers if name.lower() == b"content-type"]
            if response.status != _OK or not any(b"event-stream" in kind for kind in kinds):
                self._reading.events = False
            for data in response.iter_stream():
                if self._reading.feed(data):
                    self._wire.deadline = self._clock() + self._ask.patience_s
                if self._first_token_at is None and self._reading.begun:
                    self._first_token_at = self._wire.last_byte_at
        finally:
            response.close()

    def _verdict(self, error: Exception | None) -> tuple[Outcome, str]:
        after = f"after {self._wire.received_bytes} bytes of its response"
        silent_s = self._clock() - (self._wire.last_byte_at or self._began)
        if isinstance(error, LostWhileReading | LostWhileWriting):
            return Outcome.UNSEEN, str(error)
        if error is not None and self._status not in {None, _OK}:
            return Outcome.STATUS, f"HTTP {self._status}, and then its body did not come to an end"
        if isinstance(error, TooMuch):
            return Outcome.ENDLESS, f"sent more than {MOST_BYTES >> 20} MiB for an answer of a few words"
        if isinstance(error, httpcore.TimeoutException) and self._reading.documents and silent_s < _STILL_SENDING_S:
            spent_s = self._clock() - self._began
            return Outcome.ENDLESS, f"was still sending after {spent_s:.3g} s and {self._wire.received_bytes} bytes"
        if isinstance(error, httpcore.TimeoutException):
            if self._reading.comments and not self._reading.done:
                return Outcome.HANGS, f"sent only {self._reading.comments} keep-alive comments, and no answer"
            if self._wire.received_bytes:
                return Outcome.HANGS, f"fell silent {after}; gave up {silent_s:.3g} s later"
            return Outcome.HANGS, f"sent nothing for {silent_s:.3g} s"
        if isinstance(error, httpcore.ProtocolError) and self._wire.received_bytes and _is_no_http(error):
            return Outcome.NO_COMPLETION, f"broke the rules of HTTP {after}: {error}"
        if error is not None and self._status is None:
            if self._wire.reset:
                return Outcome.RESET, "reset the connection before any answer"
            if self._wire.received_bytes:
                return Outcome.CUT, f"ended within its headers, {after}"
            return Outcome.CLOSED, "closed the connection without an answer"
        if error is not None:
            how = "reset" if self._wire.reset else "closed"
            return Outcome.CUT, f"{how} the connection {after}"
        if self._status != _OK:
            self._reading.end()
            return Outcome.STATUS, self._refusal()
        self._reading.end()
        if self._first_token_at is None and self._reading.begun:
            self._first_token_at = self._wire.last_byte_at
        return judge(self._reading, self._ask.answer)

    def _refusal(self) -> str:
        said = self._reading.error or self._reading.strange or ""
        return f"HTTP {self._status}{': ' if said else ''}{said}"

    def _act(self, error: Exception | None) -> Act:
        if isinstance(error, httpcore.TimeoutException):
            return Act.SILENT
        if self._wire.reset:
            return Act.RESET
        return Act.CLOSED if self._wire.closed else Act.ANSWERED

    def _since(self, at: float | None) -> float | None:
        return None if at is None else at - self._began


def _is_no_http(error: Exception) -> bool:
    """Whether what came is no HTTP; an answer that is whole as far as it goes, and ends too soon, is."""
    return not any(words in str(error) for words in _ENDED_TOO_SOON)


def _engine_times(meta: Mapping[str, object]) -> dict[str, float]:
    """What SGLang's `meta_info` says of a request, in seconds: in the queue, in the prefill, from its end to the end of
    the request (on a prefill worker that is the transfer), and in all. What it does not say is left out."""
    times: dict[str, float] = {}
    for name, key in (("queue", "queue_time"), ("total", "e2e_latency")):
        if (value := _number(meta.get(key))) is not None:
            times[name] = value
    begun, computed, ended = (_number(meta.get(key)) for key in _MOMENTS)
    if begun is not None and computed is not None and begun <= computed:
        times["prefill"] = computed - begun
    if computed is not None and ended is not None and computed <= ended:
        times["after_prefill"] = ended - computed
    return times


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _encodable(text: str) -> str:
    """The text with halves of surrogate pairs, which JSON may hold and no output can, written as escapes."""
    return text.encode(errors="backslashreplace").decode()
