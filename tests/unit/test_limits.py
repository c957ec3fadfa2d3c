"""What the environment may say of a limit."""

import pytest

from serving import limits

NAME = "SGLANG_DSV4_LOST_DECODE_GRACE"


@pytest.mark.parametrize(("text", "value"), [("5", 5.0), ("0.25", 0.25), ("0", 0.0), (" 7 ", 7.0), ("", 10.0)])
def test_a_number_of_seconds(text: str, value: float) -> None:
    assert limits.seconds(NAME, 10.0, {NAME: text}) == value


def test_absent_is_the_default() -> None:
    assert limits.seconds(NAME, 10.0, {}) == 10.0


@pytest.mark.parametrize("text", ["ten", "-1", "nan", "inf", "5s"])
def test_anything_else_ends_the_engine_with_a_sentence(text: str) -> None:
    with pytest.raises(SystemExit, match=f"{NAME} is {text!r}"):
        limits.seconds(NAME, 10.0, {NAME: text})
