"""The inflight timeout of running prefill engines: read back, changed without a restart, for good or on a lease."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsv4ctl.engine_keys import keys_of
from dsv4ctl.errors import CannotLook, HostUnreachable, Refused, UsageError, VerificationFailed
from dsv4ctl.metrics.exposition import Exposition, Unreadable, parse_exposition
from dsv4ctl.metrics.loads import PATH, Load, UnreadableLoads, parse_loads

if TYPE_CHECKING:
    import httpx

    from dsv4ctl.targets import Target

KEY = "dsv4_prefill_inflight_timeout"
"""What the engine's control path calls it; docs/inflight.md."""

_ANSWER_WITHIN_S = 15.0
"""Control requests wait for the scheduler's pass to end."""

_OK = 200
_NO_ENTRY = frozenset({401, 403})


@dataclass(frozen=True)
class InForce:
    """What an engine says, in seconds: the timeout now (0: no watchdog), the one that comes back when a lease on it
    ends, and how much longer that lease runs (0: none does)."""

    timeout_s: float
    standing_s: float
    lease_left_s: float


@dataclass(frozen=True, eq=False)
class PrefillEngine:
    """One prefill worker that runs, and a client of its host's. `keys` are the headers for its pages, `admin` those for
    its controls."""

    worker: str
    unit: str
    host: str
    url: str
    client: "httpx.Client"
    keys: Mapping[str, str]
    admin: Mapping[str, str]

    def in_force(self) -> InForce:
        """What all of its ranks say.

        Raises:
            CannotLook: it does not answer, or is not patched.
            Refused: its ranks say different things.
        """
        answer = self._asked("GET", "/server_info")
        try:
            found = [_in_force(state["dsv4"]) for state in answer["internal_states"]]
        except (KeyError, TypeError, ValueError) as error:
            raise CannotLook(
                f"{self.worker} on {self.host} does not say which inflight timeout is in force",
                why=f"its answer has no {error}: it is stock SGLang, or an older plugin of ours",
                hint="`dsv4ctl doctor --only PATCHES_DIFFER`",
            ) from error
        if len({(one.timeout_s, one.standing_s) for one in found}) != 1:
            said = ", ".join(f"{one.timeout_s:g} s" for one in found)
            raise Refused(
                f"the ranks of {self.worker} on {self.host} have different timeouts: {said}",
                hint="`dsv4ctl co-restart` makes them one again",
            )
        return max(found, key=lambda one: one.lease_left_s)

    def version(self) -> str:
        """That of its SGLang.

        Raises:
            CannotLook
        """
        return str(self._asked("GET", "/server_info").get("version", "of an unknown version"))

    def metrics(self) -> Exposition:
        """All that it counts.

        Raises:
            CannotLook
        """
        try:
            return parse_exposition(self._reply("GET", "/metrics").text)
        except Unreadable as error:
            raise CannotLook(f"{self.worker} on {self.host} has no metrics", why=str(error)) from error

    def loads(self) -> tuple[Load, ...]:
        """What its ranks have just now.

        Raises:
            CannotLook
        """
        try:
            return parse_loads(self._asked("GET", PATH))
        except UnreadableLoads as error:
            raise CannotLook(f"{self.worker} on {self.host} does not tell its loads", why=str(error)) from error

    def put(self, timeout_s: float, *, was_s: float, lease_s: float | None = None) -> InForce:
        """Have all ranks use this timeout, for good or for so long, if `was_s` is in force; what is in force then.

        Raises:
            Refused: something else is in force than `was_s`, or the engine does not take it.
            VerificationFailed: it took it, and says something else.
            CannotLook
        """
        asked = {KEY: timeout_s, f"{KEY}_was": was_s}
        if lease_s is not None:
            asked[f"{KEY}_lease"] = lease_s
        self._change(asked)
        return self._proven(timeout_s, was_s if lease_s is not None else timeout_s)

    def end_lease(self) -> InForce:
        """What stood before the lease is in force again; nothing is changed where none runs. What is in force then.

        Raises: as `put`.
        """
        self._change({f"{KEY}_lease": 0.0})
        now = self.in_force()
        return self._proven(now.standing_s, now.standing_s)

    def _change(self, asked: Mapping[str, float]) -> None:
        answers = self._asked("POST", "/set_internal_state", {"server_args": dict(asked)})
        if not (isinstance(answers, list) and answers and all(answer is True for answer in answers)):
            now = self.in_force()
            raise Refused(
                f"{self.worker} on {self.host} did not take {_words(asked)}",
                why=f"{now.timeout_s:g} s are in force; its log says more" if answers else "it answered nothing",
                hint=f"`dsv4ctl logs {self.worker}`",
            )

    def _proven(self, timeout_s: float, standing_s: float) -> InForce:
        now = self.in_force()
        if (now.timeout_s, now.standing_s) != (timeout_s, standing_s):
            raise VerificationFailed(
                f"{self.worker} on {self.host} says {now.timeout_s:g} s ({now.standing_s:g} s without a lease), and "
                f"{timeout_s:g} s ({standing_s:g} s) should be in force",
                why="somebody else changed it meanwhile, or a lease on it ended",
            )
        return now

    def _asked(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        reply = self._reply(method, path, body)
        try:
            return reply.json()
        except json.JSONDecodeError as error:
            raise CannotLook(
                f"{self.worker} on {self.host} did not answer {path}", why=f"{reply.text[:80]!r} is no JSON"
            ) from error

    def _reply(self, method: str, path: str, body: object = None) -> "httpx.Response":
        import httpx

        what = f"{self.worker} on {self.host} did not answer {path}"
        try:
            headers = self.keys if method == "GET" else self.admin
            reply = self.client.request(method, f"{self.url}{path}", json=body, headers=dict(headers))
        except (httpx.HTTPError, HostUnreachable) as error:
            raise CannotLook(what, why=str(error) or type(error).__name__, hint="`dsv4ctl status`") from error
        if reply.status_code in _NO_ENTRY:
            raise CannotLook(what, why=f"HTTP {reply.status_code}: it wants a key that its command line does not show")
        if reply.status_code != _OK:
            raise CannotLook(what, why=f"HTTP {reply.status_code}: {reply.text[:200]}")
        return reply


@contextmanager
def prefill_engines(target: "Target") -> Iterator[tuple[PrefillEngine, ...]]:
    """The prefill workers of a stack, with clients that are closed at the end.

    Raises:
        UsageError: it has none.
        CannotLook: one cannot be reached.
    """
    with ExitStack() as exits:
        found = []
        for place, record in target.records:
            for worker in record.workers:
                if worker.role == "prefill":
                    at = target.fleet[place]
                    client = exits.enter_context(at.host.http(timeout_s=_ANSWER_WITHIN_S))
                    url = f"http://{worker.listen}:{worker.port}"
                    keys = keys_of(at, worker, "--api-key")
                    admin = keys_of(at, worker, "--admin-api-key") or keys
                    found.append(PrefillEngine(worker.name, worker.unit, place, url, client, keys, admin))
        if not found:
            raise UsageError(
                f"{target.name} has no prefill worker, so it has no inflight queue",
                hint="name a stack with prefill and decode apart",
            )
        yield tuple(found)


def standing(engines: Sequence[PrefillEngine]) -> dict[str, float]:
    """The timeout of each of them, by the worker's name.

    Raises:
        Refused: one is on a lease, so something is under way.
        CannotLook
    """
    found = {}
    for engine in engines:
        now = engine.in_force()
        if now.lease_left_s:
            raise Refused(
                f"{engine.worker} on {engine.host} has {now.timeout_s:g} s on a lease that ends in "
                f"{now.lease_left_s:.0f} s, and then {now.standing_s:g} s again",
                why="a verification or an --apply is under way, or was cut off",
                hint="wait for its end",
            )
        found[engine.worker] = now.timeout_s
    return found


def _in_force(figures: Mapping[str, Any]) -> InForce:
    return InForce(
        float(figures["inflight_timeout_s"]),
        float(figures["inflight_standing_timeout_s"]),
        float(figures["inflight_lease_left_s"]),
    )


def _words(asked: Mapping[str, float]) -> str:
    if KEY not in asked:
        return "the end of its lease"
    return f"{asked[KEY]:g} s in place of {asked[f'{KEY}_was']:g} s"
