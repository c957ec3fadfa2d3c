"""Taking workers out of the router and putting them in again: its `/workers`, whose changes are queued jobs.

A worker that is put in anew has a circuit breaker of its own, which is closed, and is used as soon as the router has
seen it answer. A status of 2xx only means that the router has taken a note: what it says it has is the proof.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsv4ctl.errors import CannotLook, DeadlineExceeded, OperationFailed
from dsv4ctl.waiting import wait_until

if TYPE_CHECKING:
    import httpx

_LOOK_EVERY_S = 0.1
_TAKEN = frozenset({200, 202})
_MISSING = 404
# What a person may have given a worker in the router, and what has to be the same afterwards.
_KEPT = ("priority", "cost", "bootstrap_port")


@dataclass(frozen=True)
class Registered:
    """A worker as the router has it. `more` is what was given to it beside its URL and its kind."""

    id: str
    url: str
    kind: str
    healthy: bool
    more: Mapping[str, int | float]

    @property
    def base(self) -> str:
        """Its URL without the rank that a data-parallel-aware router puts behind it."""
        return self.url.rstrip("/").partition("@")[0]


class RouterWorkers:
    """The workers of one router. `client` connects on the router's host; `name` is for messages."""

    def __init__(self, client: "httpx.Client", url: str, name: str, sleep: Callable[[float], None]) -> None:
        self._client = client
        self._url = url
        self._name = name
        self._sleep = sleep

    def listed(self) -> tuple[Registered, ...]:
        """What the router has now.

        Raises:
            CannotLook: it does not say.
        """
        import httpx

        try:
            response = self._client.get(f"{self._url}/workers")
            if response.status_code != 200:
                raise CannotLook(f"{self._name} does not list its workers", why=f"HTTP {response.status_code}")
            return tuple(_registered(entry) for entry in response.json()["workers"])
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise CannotLook(f"{self._name} does not list its workers on {self._url}", why=why) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CannotLook(f"{self._name} lists its workers in a way we cannot read", why=repr(error)) from error

    def remove(self, urls: Iterable[str], *, deadline_s: float) -> tuple[Registered, ...]:
        """Take the workers of these URLs out; nothing new is sent to them then, and what is under way goes on.

        Returns what was there. A Ctrl-C is heard when it is done: a removal that is still to come would undo what is
        put in again.

        Raises:
            OperationFailed, CannotLook, DeadlineExceeded: the router did not do it.
        """
        wanted = set(urls)
        there = tuple(worker for worker in self.listed() if worker.base in wanted)
        for worker in there:
            self._ask("DELETE", f"/workers/{worker.id}", gone_is_fine=True)
        wait_until(
            lambda: not any(worker.base in wanted for worker in self.listed()),
            deadline_s=deadline_s,
            interval_s=_LOOK_EVERY_S,
            what=f"{self._name} to let go of {', '.join(sorted(wanted))}",
        )
        return there

    def add(self, workers: Iterable[Registered], *, deadline_s: float) -> None:
        """Put workers in, and wait until the router says that those which are said to be well are so.

        Raises:
            OperationFailed, CannotLook, DeadlineExceeded: the router did not do it.
        """
        wanted = {worker.base: worker for worker in workers}
        present = {worker.base for worker in self.listed()}
        for base, worker in wanted.items():
            if base not in present:
                self._ask("POST", "/workers", {"url": base, "worker_type": worker.kind, **worker.more})

        def well() -> bool:
            states = {worker.base: worker.healthy for worker in self.listed()}
            return all(base in states and (states[base] or not worker.healthy) for base, worker in wanted.items())

        try:
            wait_until(
                well,
                deadline_s=deadline_s,
                interval_s=_LOOK_EVERY_S,
                what=f"{self._name} to use {', '.join(wanted)}",
                sleep=self._sleep,
            )
        except DeadlineExceeded as error:
            states = {worker.base: "not well" if not worker.healthy else "well" for worker in self.listed()}
            missing = [f"{base} is {states.get(base, 'not there')}" for base in wanted if states.get(base) != "well"]
            raise DeadlineExceeded(error.what, why="; ".join(missing)) from error

    def put_back(self, workers: Sequence[Registered], *, deadline_s: float) -> None:
        """Put in workers whose removal was asked for and not seen: once it is, for it would undo what comes before it.

        Raises: as `add`. Where the removal is still not seen, nothing is known of what the router will do.
        """
        self.remove([worker.base for worker in workers], deadline_s=deadline_s)
        self.add(workers, deadline_s=deadline_s)

    def _ask(self, method: str, path: str, body: object = None, *, gone_is_fine: bool = False) -> None:
        import httpx

        try:
            response = self._client.request(method, f"{self._url}{path}", json=body)
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise OperationFailed(f"{self._name} did not take {method} {path}", why=why) from error
        if response.status_code in _TAKEN or (gone_is_fine and response.status_code == _MISSING):
            return
        raise OperationFailed(
            f"{self._name} answered {method} {path} with HTTP {response.status_code}", why=response.text[:200]
        )


def _registered(entry: Mapping[str, Any]) -> Registered:
    more = {name: entry[name] for name in _KEPT if isinstance(entry.get(name), int | float)}
    return Registered(str(entry["id"]), str(entry["url"]), str(entry["worker_type"]), bool(entry["is_healthy"]), more)
