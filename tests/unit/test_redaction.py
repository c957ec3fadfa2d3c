"""Secrets are not shown, and yet two of them can be told apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.redaction import redact, redact_argv, redact_env

SECRET = st.text(min_size=6, alphabet="abcdefghijklmnop0123456789")


@pytest.mark.parametrize("name", ["HF_TOKEN", "OPENAI_API_KEY", "db_password", "MY_SECRET_THING"])
def test_names_that_hold_secrets(name: str) -> None:
    assert "hunter2" not in redact(name, "hunter2")


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "SGLANG_LOG_MS", "SGLANG_DSV4_BF16_INDEX_K"])
def test_names_that_do_not(name: str) -> None:
    assert redact(name, "1") == "1"


@given(SECRET, SECRET)
def test_two_secrets_look_the_same_only_if_they_are(first: str, second: str) -> None:
    assert (redact("KEY", first) == redact("KEY", second)) == (first == second)


@given(SECRET, st.sampled_from(["--api-key", "--admin-api-key", "--hf-token", "--ssl-keyfile-password"]), st.booleans())
def test_no_secret_is_left_in_a_command_line(secret: str, flag: str, joined: bool) -> None:
    words = [f"{flag}={secret}"] if joined else [flag, secret]
    shown = redact_argv(["python", "-m", "x", *words, "--port", "30000"])
    assert secret not in " ".join(shown)
    assert shown[-2:] == ("--port", "30000")


def test_numbers_of_tokens_are_no_secrets() -> None:
    argv = ("--max-total-tokens", "32768", "--max-total-tokens=32768")
    assert redact_argv(argv) == argv


def test_an_empty_secret_is_shown_as_empty_because_that_is_a_fault_to_see() -> None:
    assert redact_env({"HF_TOKEN": ""}) == {"HF_TOKEN": ""}
