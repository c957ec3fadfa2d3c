"""A stack whose engines want a key: every command that asks them has it, and none shows it."""

from collections.abc import Iterator

import pytest

from tests.engine import Dsv4, StackProfile, write_profile

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

KEY = "letmein-letmein-letmein"


@pytest.fixture(scope="module")
def dsv4(tmp_path_factory: pytest.TempPathFactory) -> Dsv4:
    return Dsv4(tmp_path_factory.mktemp("keyed"))


@pytest.fixture(scope="module")
def stack(dsv4: Dsv4, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackProfile]:
    more = f'[env]\nSGLANG_DSV4_ALLOW_HOLD = 1\n[args]\napi-key = "{KEY}"\n'
    profile = write_profile(tmp_path_factory.mktemp("keyed"), "keyed", more=more)
    served = dsv4.invoke("serve", "--detach", profile.path)
    assert served.code == 0, served.err
    yield profile
    assert dsv4.invoke("stop", "--yes", profile.path).code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("watch-inflight", "--duration", "3"),
        ("tune-timeout", "--verify", "--verify-with", "6", "--yes"),
        ("tune-timeout", "--apply", "45", "--soak", "1", "--yes"),
        ("tune-timeout", "--undo", "--yes"),
        ("co-restart", "--yes"),
        ("doctor",),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_command_has_the_key_and_does_not_show_it(dsv4: Dsv4, stack: StackProfile, words: tuple[str, ...]) -> None:
    done = dsv4.run(words[0], stack.path, *words[1:], "-o", "json", timeout_s=300)
    assert done.code == 0, done.err
    assert KEY not in done.out + done.err
