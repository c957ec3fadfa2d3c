"""Which half of a pair stands still: each engine is asked for a token of its own, which only its scheduler can make."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from dsv4ctl.errors import DeadlineExceeded
from dsv4ctl.probe.hops import Hop, Place
from dsv4ctl.waiting import wait_until

if TYPE_CHECKING:
    import httpx

_PATH = "/health_generate"
_FINE = f"answers {_PATH}"
# A server that drips an answer is let go of after this much more than the patience with one that is silent.
_SLACK_S = 1.0


def worker_words(
    hop: Hop,
    client_of: Callable[[str, float], "httpx.Client"],
    within_s: float,
    sleep: Callable[[float], None],
) -> str:
    """What the schedulers of a hop's workers answer, as a part of a sentence. Asked only where requests failed.

    Raises:
        Interrupted: by `sleep`.
    """
    asked = [_Asking(place, client_of, within_s) for place in hop.places]
    for one in asked:
        one.start()
    with suppress(DeadlineExceeded):
        wait_until(
            lambda: not any(one.is_alive() for one in asked),
            deadline_s=within_s + _SLACK_S,
            interval_s=0.05,
            what="the workers to answer",
            sleep=sleep,
        )
    said = {one.place.name: one.said or f"does not answer {_PATH} within {within_s:g} s" for one in asked}
    fine = [name for name, words in said.items() if words == _FINE]
    others = [f"{name} {words}" for name, words in said.items() if words != _FINE]
    if others:
        return ", ".join([*others, *(f"{name} answers it" for name in fine)])
    return f"{' and '.join(fine)} {'answers' if len(fine) == 1 else 'answer'} {_PATH}"


class _Asking(threading.Thread):
    """One worker being asked. Only the status counts: the body is not read, and may be without an end."""

    def __init__(self, place: Place, client_of: Callable[[str, float], "httpx.Client"], within_s: float) -> None:
        super().__init__(daemon=True)
        self.place = place
        self._client_of = client_of
        self._within_s = within_s
        self.said = ""

    def run(self) -> None:
        """Ask, and keep what was said."""
        import httpx

        url = f"{self.place.url}{_PATH}"
        try:
            with self._client_of(self.place.host, self._within_s) as client, client.stream("GET", url) as response:
                status = response.status_code
            self.said = _FINE if status == httpx.codes.OK else f"answers {_PATH} with HTTP {status}"
        except httpx.TimeoutException:
            return
        except httpx.ConnectError:
            self.said = "cannot be connected to"
        except httpx.HTTPError:
            self.said = f"broke the connection on which it was asked for {_PATH}"
