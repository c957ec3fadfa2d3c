"""A prefill engine as far as its inflight timeout is concerned: the pages and the control of it, by the engine's own
rules and a clock that is set by hand."""

import json
from dataclasses import dataclass, field

import httpx

from dsv4ctl.tuning.control import PrefillEngine
from serving.inflight.timeout import BadTimeout, Change, InForce


@dataclass
class TimeoutEngine:
    """`lost_after`: how many requests are answered before the connection is lost for good; None: all are. `fires` and
    `left` are what it counts. `deaf`: it takes changes and does not make them."""

    in_force: InForce
    now_s: float = 0.0
    lost_after: int | None = None
    asked: int = 0
    fires: int = 0
    left: dict[str, int] = field(default_factory=lambda: {"success": 0, "timeout": 0})
    deaf: bool = False
    changes: list[dict[str, float]] = field(default_factory=list)

    def goes_by(self, seconds: float) -> None:
        """Time passes."""
        self.now_s += seconds
        self.in_force = self.in_force.at(self.now_s)

    def client(self, worker: str = "prefill-0") -> PrefillEngine:
        """As the tool knows it."""
        client = httpx.Client(transport=httpx.MockTransport(self._answer))
        return PrefillEngine(worker, f"dsv4-x-{worker}", "local", "http://engine", client, {}, {})

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if self.lost_after is not None and self.asked >= self.lost_after:
            raise httpx.ConnectError("lost", request=request)
        self.asked += 1
        if request.url.path == "/server_info":
            figures = {
                "inflight_timeout_s": self.in_force.timeout_s,
                "inflight_standing_timeout_s": self.in_force.standing_s,
                "inflight_lease_left_s": self.in_force.lease_left_s(self.now_s),
            }
            return httpx.Response(200, json={"internal_states": [{"dsv4": figures}], "version": "0.5.23"})
        if request.url.path == "/v1/loads":
            section = {"held": 0, "settling": 0, "fires_total": self.fires, "left_total": dict(self.left)}
            return httpx.Response(200, json={"loads": [{"dp_rank": 0, "dsv4": section}]})
        return httpx.Response(200, json=[self._changed(json.loads(request.content)["server_args"])])

    def _changed(self, asked: dict[str, float]) -> bool:
        self.changes.append(asked)
        change = Change(self.in_force)
        try:
            for key, value in asked.items():
                change.check(key, value)
        except BadTimeout:
            return False
        if not self.deaf:
            self.in_force = change.after(self.now_s)
        return True
