"""What prefill and decode apart cannot serve is refused at once, and the engine lives."""

import httpx
import pytest

from tests.engine import StackProfile
from tests.stack.test_equality import check_equality

pytestmark = pytest.mark.stack

AT_ONCE_S = 5.0


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/generate", {"text": "two of them", "sampling_params": {"n": 2, "max_new_tokens": 4}}, "n=2 cannot"),
        ("/v1/completions", {"model": "tiny", "prompt": "two of them", "n": 2, "max_tokens": 4}, "n=2 cannot"),
        ("/generate", {"text": "", "sampling_params": {"max_new_tokens": 4}}, "the prompt is empty"),
        ("/v1/completions", {"model": "tiny", "prompt": "", "max_tokens": 4}, "empty"),
    ],
)
def test_a_request_that_cannot_be_served(shared: StackProfile, path: str, body: dict[str, object], says: str) -> None:
    reply = httpx.post(shared.url + path, json=body, timeout=AT_ONCE_S)
    assert reply.status_code == httpx.codes.BAD_REQUEST, reply.text
    assert says in reply.text
    check_equality(shared.url, None, lengths=(1,))
