"""A canary that is pinned on purpose, and what must come of it on any stack of the CPU profiles."""

import time
from dataclasses import dataclass
from typing import Any

import httpx

from dsv4ctl.waiting import wait_until
from tests.engine import StackProfile

TIMEOUT_S = 3.0
# A pass of the scheduler, the way to decode, and the way back, on a machine that does other things too.
SLACK_S = 2.0
SETTLED_WITHIN_S = 5.0
PROMPT = "a canary that sings of nothing " * 12


@dataclass(frozen=True)
class Ended:
    """How a request ended: its status, all that was said, and after how many seconds."""

    status: int
    text: str
    seconds: float


@dataclass(frozen=True)
class Pair:
    """One prefill and one decode behind a router, with what each says of itself."""

    router: str
    prefill: str
    decode: str

    @classmethod
    def of(cls, profile: StackProfile) -> "Pair":
        _, _, prefill, _, decode = profile.ports
        return cls(profile.url, f"http://127.0.0.1:{prefill}", f"http://127.0.0.1:{decode}")

    def figures(self, url: str) -> dict[str, Any]:
        """What the engine at `url` holds: rooms, buffers, pages, and on prefill what is inflight."""
        reply = httpx.get(f"{url}/server_info", timeout=30)
        reply.raise_for_status()
        figures = reply.json()["internal_states"][0]["dsv4"]
        assert isinstance(figures, dict)
        return figures

    def set_timeout(self, seconds: float | None = None, **more: float) -> bool:
        """Change the inflight timeout of the running prefill, with `was` and `lease`; whether it took it."""
        key = "dsv4_prefill_inflight_timeout"
        asked = {} if seconds is None else {key: seconds}
        body = {"server_args": asked | {f"{key}_{name}": value for name, value in more.items()}}
        reply = httpx.post(f"{self.prefill}/set_internal_state", json=body, timeout=30)
        reply.raise_for_status()
        return bool(all(reply.json()))

    def hold(self, rid: str, *, stream: bool) -> Ended:
        """Send a canary that asks to be held, through the router."""
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4, "rid": rid, "stream": stream}
        start = time.monotonic()
        reply = httpx.post(f"{self.router}/v1/completions", json=body, timeout=60)
        return Ended(reply.status_code, reply.text, time.monotonic() - start)


def check_held_canaries(profile: StackProfile) -> None:
    """Held canaries are ended in time and with the reason, and leave everything as it was."""
    pair = Pair.of(profile)
    before = {url: pair.figures(url) for url in (pair.prefill, pair.decode)}
    assert pair.set_timeout(TIMEOUT_S)
    try:
        assert pair.figures(pair.prefill)["inflight_timeout_s"] == TIMEOUT_S
        for stream in (False, True):
            ended = pair.hold(f"dsv4-hold-60-{int(stream)}", stream=stream)
            assert "inflight timeout" in ended.text, ended
            assert "waiting_for_input" in ended.text, ended
            assert f"the limit is {TIMEOUT_S:g} s (SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT)" in ended.text, ended
            assert ended.status == (200 if stream else 500), ended
            assert TIMEOUT_S <= ended.seconds <= TIMEOUT_S + SLACK_S, ended
    finally:
        assert pair.set_timeout(before[pair.prefill]["inflight_timeout_s"])
    before[pair.prefill]["watchdog_fires"] += 2
    # The stages of a pipeline agree on what has settled, which takes them a few rounds after the answer.
    wait_until(
        lambda: {url: pair.figures(url) for url in before} == before or None,
        deadline_s=SETTLED_WITHIN_S,
        what=f"{profile.name} to hold what it held before its canaries, {before}",
    )
