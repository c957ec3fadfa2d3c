"""Which half of a pair stands still: each engine is asked for a token of its own, which only its scheduler can make."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dsv4ctl.probe.hops import Hop, Place

if TYPE_CHECKING:
    import httpx

_PATH = "/health_generate"


def worker_words(hop: Hop, client_of: Callable[[str, float], "httpx.Client"], within_s: float) -> str:
    """What the schedulers of a hop's workers answer, as a part of a sentence. Asked only where requests failed."""
    answers = {place.name: _answers(place, client_of, within_s) for place in hop.places}
    silent = [name for name, said in answers.items() if said is None]
    wrong = [f"{name} answers {_PATH} with {said}" for name, said in answers.items() if said not in {None, "HTTP 200"}]
    fine = [name for name, said in answers.items() if said == "HTTP 200"]
    words = [f"{name} does not answer {_PATH} within {within_s:g} s" for name in silent] + wrong
    words += [f"{name} answers it" for name in fine] if words else [f"{' and '.join(fine)} answer {_PATH}"]
    return ", ".join(words)


def _answers(place: Place, client_of: Callable[[str, float], "httpx.Client"], within_s: float) -> str | None:
    import httpx

    try:
        with client_of(place.host, within_s) as client:
            return f"HTTP {client.get(f'{place.url}{_PATH}').status_code}"
    except httpx.TimeoutException:
        return None
    except httpx.HTTPError as error:
        return f"{type(error).__name__}"
