"""The hops of a request's path, nearest to the client first, and how each is asked."""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dsv4ctl.errors import UsageError
from dsv4ctl.printable import printable
from dsv4ctl.probe.link import Ask, Endpoint, Link
from dsv4ctl.probe.outcome import Outcome, Reply

if TYPE_CHECKING:
    from dsv4ctl.stack import Worker
    from dsv4ctl.state import StackRecord, WorkerRecord

DEFAULT_BOOTSTRAP_PORT = 8998
_PORTS = 1 << 16
ENGINE_ENV = "SGLANG_USE_CPU_ENGINE"
_OTHER_HALF_S = 3.0
"""What prefill has to say still, once decode has failed."""


@dataclass(frozen=True)
class Place:
    """Where something answers: its name, its URL without /v1, the host that connects to it, its bootstrap port."""

    name: str
    url: str
    host: str
    bootstrap_port: int | None = None


@dataclass(frozen=True)
class Hop:
    """One hop: a server that is asked as a client asks, or prefill and decode, asked by halves as the router does.

    Attributes:
        depth: counted from the client; pairs of one stack share it, for none lies behind another.
        engine: whether it is known to be the engine itself, with nothing behind it.
    """

    depth: int
    server: Place
    prefill: Place | None = None
    engine: bool = False

    @property
    def name(self) -> str:
        """What tables and sentences call it."""
        return self.server.name if self.prefill is None else f"{self.prefill.name}+{self.server.name}"

    @property
    def places(self) -> tuple[Place, ...]:
        """The servers that it takes."""
        return (self.server,) if self.prefill is None else (self.prefill, self.server)


def via_hops(urls: Sequence[str]) -> tuple[Hop, ...]:
    """The hops that a person named, in that order. PREFILL_URL[#BOOTSTRAP_PORT]+DECODE_URL is a pair.

    Raises:
        UsageError: something is no http or https URL, or holds a password.
    """
    hops: list[Hop] = []
    for depth, url in enumerate(urls):
        first, plus, second = url.partition("+http")
        if plus:
            hops.append(Hop(depth, _via(f"http{second}"), _via(first, prefill=True), engine=True))
        else:
            hops.append(Hop(depth, _via(url)))
    names = [hop.name for hop in hops]
    if len(set(names)) < len(names):
        raise UsageError("--via names the same URL twice", hint="each hop once, nearest to the client first")
    return tuple(hops)


def _via(url: str, *, prefill: bool = False) -> Place:
    no_url = UsageError(f"--via {printable(url)}: that is no URL of a server", hint="for example http://127.0.0.1:8080")
    if "@" in url:
        raise UsageError("--via: a URL with a password in it would be shown", hint="use --api-key-file")
    # The parser takes newlines out without a word; and what is not ASCII has to be written as it goes over the wire.
    if not url.isascii() or any(not sign.isprintable() or sign == " " for sign in url):
        raise no_url
    try:
        parts = urlsplit(url)
        port = int(parts.fragment) if parts.fragment else DEFAULT_BOOTSTRAP_PORT
        (parts.hostname or "").encode("idna")
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except (ValueError, UnicodeError) as error:
        raise no_url from error
    if not good or not 0 < port < _PORTS or parts.query or (parts.fragment and not prefill):
        raise no_url
    path = parts.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1")
    base = f"{parts.scheme}://{parts.netloc}{path}"
    return Place(base, base, "local", port if prefill else None)


def stack_hops(records: Sequence[tuple[str, "StackRecord"]], depth: int) -> tuple[Hop, ...]:
    """The hops of a stack of ours: its router, then each pair of prefill and decode, or each server by itself."""
    workers = [(host, worker) for host, record in records for worker in record.workers]
    routers = [_place(host, worker) for host, worker in workers if worker.role == "router"]
    return (*(Hop(depth, router) for router in routers), *_engine_hops(workers, depth + bool(routers)))


def pairs_of(workers: Sequence["Worker"]) -> tuple[Hop, ...]:
    """Each pair of prefill and decode among planned workers, or each server by itself."""
    return _engine_hops([(worker.host, worker) for worker in workers], 0)


def _engine_hops(workers: Sequence[tuple[str, "WorkerRecord | Worker"]], depth: int) -> tuple[Hop, ...]:
    prefills = [_place(host, worker) for host, worker in workers if worker.role == "prefill"]
    decodes = [_place(host, worker) for host, worker in workers if worker.role == "decode"]
    servers = [_place(host, worker) for host, worker in workers if worker.role == "unified"]
    return (
        *(Hop(depth, decode, prefill, engine=True) for prefill in prefills for decode in decodes),
        *(Hop(depth, server, engine=True) for server in servers),
    )


def _place(host: str, worker: "WorkerRecord | Worker") -> Place:
    listen = "127.0.0.1" if worker.listen in {"0.0.0.0", "::"} else worker.listen  # noqa: S104 (read, not bound)
    return Place(worker.name, f"http://{listen}:{worker.port}", host, worker.ports.get("bootstrap"))


def covering(hops: Sequence[Hop]) -> tuple[Hop, ...]:
    """As few pairs as touch every worker of the innermost depth, and all other hops: for what takes many requests."""
    chosen = [hop for hop in hops if hop.prefill is None]
    seen: set[Place] = set()
    for new_workers in (2, 1):
        for hop in hops:
            if hop.prefill is not None and len({*hop.places} - seen) >= new_workers:
                chosen.append(hop)
                seen |= {*hop.places}
    return tuple(sorted(chosen, key=lambda hop: hop.depth))


def on_cpu(records: Sequence[tuple[str, "StackRecord"]]) -> bool:
    """Whether every engine of a stack is the one without a GPU, which nobody's work hangs on."""
    engines = [worker for _, record in records for worker in record.workers if worker.role != "router"]
    return bool(engines) and all(worker.env.get(ENGINE_ENV) == "1" for worker in engines)


@dataclass(frozen=True)
class Answered:
    """What a hop said: the reply that a client sees, and that of prefill where the halves were asked."""

    reply: Reply
    prefill: Reply | None = None


class Caller:
    """Asks one hop, on connections that it keeps until `close`."""

    def __init__(self, hop: Hop, endpoint_of: Callable[[Place], Endpoint], rng: random.Random) -> None:
        self._hop = hop
        self._rng = rng
        self._server = Link(endpoint_of(hop.server))
        self._prefill = Link(endpoint_of(hop.prefill)) if hop.prefill is not None else None

    def look(self) -> None:
        """Between requests: note when the other side closes."""
        self._server.look()
        if self._prefill is not None:
            self._prefill.look()

    def close(self) -> None:
        self._server.close()
        if self._prefill is not None:
            self._prefill.close()

    def ask(self, ask: Ask) -> Answered:
        """One request. By halves, prefill and decode are asked at once, with a room that nobody has used."""
        if self._prefill is None or self._hop.prefill is None:
            return Answered(self._server.ask(ask))
        room = {
            "bootstrap_host": urlsplit(self._hop.prefill.url).hostname,
            "bootstrap_port": self._hop.prefill.bootstrap_port or DEFAULT_BOOTSTRAP_PORT,
            "bootstrap_room": self._rng.getrandbits(63),
        }
        body = {**ask.body, "stream": False, "return_meta_info": True, **room}
        body.pop("stream_options", None)
        half = _Half(self._prefill, replace(ask, body=body, answer=None))
        half.start()
        reply: Reply | None = None
        try:
            reply = self._server.ask(replace(ask, body={**ask.body, **room}))
        finally:
            # Prefill notices that its KV is sent after the batch that it computes by then, which may be a long one.
            well = reply is not None and reply.outcome is Outcome.RIGHT
            self._prefill.hurry(ask.patience_s if well else _OTHER_HALF_S)
            half.join()
        if half.reply is None:
            raise half.error or AssertionError("prefill's half ended without a word")
        other = half.reply.detail or half.reply.outcome.value
        if reply.outcome is Outcome.RIGHT and half.reply.outcome is Outcome.UNSEEN:
            reply = replace(reply, outcome=Outcome.UNSEEN, detail=f"prefill: {other}")
        if reply.outcome is Outcome.RIGHT and half.reply.outcome.failed:
            detail = f"decode answered rightly, and prefill did not: {other}"
            reply = replace(reply, outcome=half.reply.outcome, detail=detail)
        elif reply.outcome.failed:
            theirs = "its half was answered" if half.reply.outcome is Outcome.RIGHT else other
            reply = replace(reply, detail=f"decode: {reply.detail}; prefill: {theirs}")
        return Answered(reply, half.reply)


class _Half(threading.Thread):
    """Prefill's half of a request, beside decode's."""

    def __init__(self, link: Link, ask: Ask) -> None:
        super().__init__(daemon=True)
        self._link = link
        self._ask = ask
        self.reply: Reply | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.reply = self._link.ask(self._ask)
        except BaseException as error:  # noqa: BLE001 (it is raised where the halves are joined)
            self.error = error
