"""A request that asks to be pinned (docs/inflight.md, "Proving it"), sent through the router as a client would."""

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dsv4ctl.canary import make_prompt
from dsv4ctl.errors import HostUnreachable

if TYPE_CHECKING:
    import random

    import httpx

PATCH = "held-canary"
PREFIX = "dsv4-hold-"
_TOKENS = 96
_CHARACTERS_PER_TOKEN = 3.0
_MOST_BYTES = 1 << 20


class HeldCanary:
    """One of them. After `send`: `ended` tells whether it has ended, and then `status`, `text` and `seconds` how."""

    def __init__(self, hold_s: int, rng: "random.Random") -> None:
        self.rid = f"{PREFIX}{hold_s}-verify-{secrets.token_hex(6)}"
        self._prompt = make_prompt(_TOKENS, characters_per_token=_CHARACTERS_PER_TOKEN, rng=rng).text
        self._over = threading.Event()
        self.status: int | None = None
        self.text = ""
        self.seconds = 0.0

    @property
    def ended(self) -> bool:
        """Whether its client has its answer, or lost its connection."""
        return self._over.is_set()

    def send(
        self,
        client: "httpx.Client",
        url: str,
        model: str,
        headers: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Send it, from a thread of its own. Closing the client ends it."""
        # A router sends a request that failed again; not one whose answer has begun.
        body = {"model": model, "prompt": self._prompt, "max_tokens": 4, "rid": self.rid, "stream": True}

        def ask() -> None:
            import httpx

            began_s = clock()
            try:
                with client.stream("POST", f"{url}/v1/completions", json=body, headers=dict(headers)) as reply:
                    self.status = reply.status_code
                    for part in reply.iter_text():
                        self.text += part
                        if len(self.text) > _MOST_BYTES:
                            break
            except (httpx.HTTPError, HostUnreachable, RuntimeError) as error:
                # A client that was closed meanwhile raises RuntimeError.
                self.text += f"{type(error).__name__}: {error}"
            finally:
                self.seconds = clock() - began_s
                self._over.set()

        threading.Thread(target=ask, name=self.rid, daemon=True).start()
