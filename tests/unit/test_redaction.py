"""Secrets are not shown, and yet two of them can be told apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.knobs import snapshot
from dsv4ctl.redaction import argv_stands_for, fingerprint, redact, redact_argv, redact_env, redact_text, stands_for
from dsv4ctl.secret_names import is_secret, is_secret_flag

SECRET = st.text(min_size=6, alphabet="abcdefghijklmnop0123456789")


@pytest.mark.parametrize(
    "name",
    [
        *(
            "HF_TOKEN",
            "OPENAI_API_KEY",
            "db_password",
            "MY_SECRET_THING",
            "MY_PASSWD",
            "PGPASSWORD",
            "MY_PWD",
            "DB_PWD_2",
        ),
        *(
            "PASSPHRASE",
            "MY_CREDENTIALS",
            "AWS_CREDENTIAL",
            "HTTP_AUTH",
            "REGISTRY_AUTH",
            "DB_PASS",
            "AWS_ACCESS_KEY_ID",
        ),
        *("SESSION_COOKIE", "dbPassword", "API_TOKENS", "GITHUB_TOKEN_2"),
    ],
)
def test_names_that_hold_secrets(name: str) -> None:
    assert "hunter2" not in redact(name, "hunter2")


@pytest.mark.parametrize(
    "name",
    [
        *("TOKENIZERS_PARALLELISM", "SGLANG_LOG_MS", "SGLANG_DSV4_BF16_INDEX_K", "TOKENIZER_PATH", "MAX_TOKENS", "PWD"),
        *("OLDPWD", "SSH_AUTH_SOCK", "SGLANG_MAX_NEW_TOKENS_LIMIT", "AUTHOR", "BYPASS_CACHE", "COMPASS"),
    ],
)
def test_names_that_do_not(name: str) -> None:
    assert redact(name, "1") == "1"


def test_no_name_of_the_engines_own_is_taken_for_a_secret_but_its_keys_and_passwords() -> None:
    known = snapshot("0.5.23")
    assert known is not None
    assert [name for name in known.env if is_secret(name)] == ["EXA_API_KEY"]
    assert {name for name in (*known.engine_flags, *known.router_flags) if is_secret_flag(name)} == {
        *("admin-api-key", "api-key", "ssl-keyfile-password", "control-plane-api-keys", "oracle-password")
    }


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


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("postgres://bob:hunter22@db/x", "postgres://bob:{}@db/x"),
        ("redis://:hunter22@db", "redis://:{}@db"),
        ("http://u:hunter22@a:1,http://b:2", "http://u:{}@a:1,http://b:2"),
    ],
)
def test_the_password_of_a_url_is_hidden_under_any_name_and_the_rest_is_shown(value: str, shown: str) -> None:
    shown = shown.format(fingerprint("hunter22"))
    assert redact("HTTP_PROXY", value) == shown
    assert redact_argv(["x", "--proxy", value, f"--at={value}"]) == ("x", "--proxy", shown, f"--at={shown}")
    # It is the same when it is redacted again.
    assert redact("HTTP_PROXY", shown) == shown


@pytest.mark.parametrize("value", ["http://127.0.0.1:30000/a@b", "tcp://host:1", "git@github.com:a/b", "ssh://me@host"])
def test_a_url_without_a_password_is_shown(value: str) -> None:
    assert redact_text(value) == value


def test_a_flag_that_takes_several_has_all_of_them_hidden() -> None:
    shown = redact_argv(["x", "--control-plane-api-keys", "a:b:admin:k1", "c:d:user:k2", "--port", "1"])
    assert shown == (
        *("x", "--control-plane-api-keys", fingerprint("a:b:admin:k1"), fingerprint("c:d:user:k2"), "--port", "1"),
    )


def test_a_variable_in_a_command_line_is_one_there_too() -> None:
    assert redact_argv(["env", "HF_TOKEN=hunter2", "python"]) == ("env", f"HF_TOKEN={fingerprint('hunter2')}", "python")


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("MY_TOKEN", "hunter2", fingerprint("hunter2")),
        ("URL", "http://u:hunter22@a", f"http://u:{fingerprint('hunter22')}@a"),
        # As an older version kept them, which knew fewer secrets, and took some names for secrets that are none.
        ("MY_PASSWD", "hunter2", "hunter2"),
        ("TOKENIZER_PATH", "/models/x", fingerprint("/models/x")),
        ("SGLANG_A", "1", "1"),
    ],
)
def test_what_is_stored_is_known_again(name: str, value: str, stored: str) -> None:
    assert stands_for(stored, name, value)
    assert not stands_for(stored, name, f"{value}x")
    assert argv_stands_for(["python", stored], ["python", value])
    assert not argv_stands_for(["python", stored], ["python", value, "--more"])
