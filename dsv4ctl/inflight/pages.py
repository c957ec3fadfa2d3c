"""The pages of one engine, asked for again and again at little cost.

A request is made once, and goes straight to the transport: cookies, redirects and logins of a client are not for an
engine, and cost as much of our processor as all the rest of a look.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4ctl.errors import HostUnreachable

if TYPE_CHECKING:
    import httpx

PART_WITHIN_S = 5.0
ANSWER_WITHIN_S = 10.0
LARGEST_ANSWER = 64 * 1024 * 1024

# An engine with --api-key has its metrics open to everybody, and its loads not.
_NOT_FOR_US = frozenset({400, 401, 403, 404, 405, 501})


class CannotSample(Exception):
    """A worker could not be looked at, and why."""


class NoSuchPage(CannotSample):
    """It answers, and has no such page for us: an older engine, or one that wants a key for it."""


@dataclass(frozen=True)
class Answer:
    """What an engine answered: the body, the Date header, and how long it took in seconds."""

    body: bytes
    served: str | None
    took_s: float


class Pages:
    """The pages below a URL, over connections that are kept."""

    def __init__(
        self,
        url: str,
        transport: "httpx.BaseTransport",
        clock: Callable[[], float] = time.monotonic,
        keys: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url
        self._keys = keys or {}
        self._transport = transport
        self._clock = clock
        self._requests: dict[str, httpx.Request] = {}

    def get(self, path: str) -> Answer:
        """One of them, as it is now.

        Raises:
            NoSuchPage: the engine has no such page, or not for us.
            CannotSample: there is no answer, or none that can be used.
        """
        import httpx

        began_s = self._clock()
        url = self.url + path
        body = bytearray()
        try:
            reply = self._transport.handle_request(self._request(path))
            try:
                assert isinstance(reply.stream, httpx.SyncByteStream)
                for part in reply.stream:
                    body += part
                    # Its own timeout is of each part, and an answer may come a byte at a time, or never end.
                    if self._clock() - began_s > ANSWER_WITHIN_S:
                        raise CannotSample(f"{url}: no whole answer within {ANSWER_WITHIN_S:g} s")
                    if len(body) > LARGEST_ANSWER:
                        raise CannotSample(f"{url}: the answer is longer than {LARGEST_ANSWER} bytes")
            finally:
                reply.close()
        except httpx.HTTPError as error:
            raise CannotSample(f"{url}: {type(error).__name__}: {error}") from error
        except HostUnreachable as error:
            raise CannotSample(str(error)) from error
        if reply.status_code in _NOT_FOR_US:
            raise NoSuchPage(f"{url} answered HTTP {reply.status_code}")
        if reply.status_code != httpx.codes.OK:
            raise CannotSample(f"{url} answered HTTP {reply.status_code}")
        return Answer(bytes(body), reply.headers.get("date"), self._clock() - began_s)

    def _request(self, path: str) -> "httpx.Request":
        if path not in self._requests:
            import httpx

            # Nothing here unpacks what an engine might compress.
            headers = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "dsv4ctl", **self._keys}
            timeout = httpx.Timeout(PART_WITHIN_S).as_dict()
            self._requests[path] = httpx.Request(
                "GET", self.url + path, headers=headers, extensions={"timeout": timeout}
            )
        return self._requests[path]

    def close(self) -> None:
        """Close its connections."""
        self._transport.close()
