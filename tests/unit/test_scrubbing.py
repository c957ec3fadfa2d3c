"""No secret stays in a text, however it is written there, and what is none stays."""

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.redaction import redact
from dsv4ctl.scrubbing import Scrubber

SECRETS = st.text(alphabet="abcXYZ019\"'\\ /+=%&é\n", min_size=8, max_size=40).filter(
    lambda text: len(text.strip()) >= 8 and not text.strip().isdigit()
)
TEXTS = st.text(max_size=30)


def writings(secret: str) -> list[str]:
    """A secret as a log, a JSON document, Python and a URL have it."""
    return [secret, json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret), quote(secret, safe="")]


def is_in(secret: str, data: bytes) -> bool:
    bare = secret.strip()
    forms = (bare, json.dumps(bare)[1:-1], json.dumps(bare, ensure_ascii=False)[1:-1], quote(bare, safe=""))
    return any(form.encode() in data for form in forms)


@given(SECRETS, TEXTS, TEXTS, st.sampled_from(["HF_TOKEN", "MY_API_KEY", "Password_of_db", "CLIENT_SECRET_2"]))
def test_the_value_of_a_secret_variable_stands_nowhere(secret: str, before: str, after: str, name: str) -> None:
    scrubber = Scrubber([{name: secret}])
    for written in writings(secret):
        assert not is_in(secret, scrubber.scrub(f"{before}{written}{after}".encode(errors="replace")))


@given(SECRETS, st.sampled_from(["--api-key", "--admin-api-key", "--hf-token"]), st.booleans())
def test_nor_does_that_of_a_secret_flag(secret: str, flag: str, joined: bool) -> None:
    scrubber = Scrubber(argvs=[["python", *([f"{flag}={secret}"] if joined else [flag, secret]), "--port", "30000"]])
    for written in writings(secret):
        assert not is_in(secret, scrubber.scrub(f"api_key={written} port 30000".encode()))


@given(st.lists(SECRETS, min_size=2, max_size=5), TEXTS)
def test_one_secret_may_contain_another(secrets: list[str], between: str) -> None:
    secrets.append(f"{secrets[0]}{secrets[1]}")
    scrubber = Scrubber([{f"KEY_{at}": secret for at, secret in enumerate(secrets)}])
    text = between.join(secrets).encode(errors="replace")
    scrubbed = scrubber.scrub(text)
    assert not any(is_in(secret, scrubbed) for secret in secrets)


def test_the_fingerprint_is_the_one_of_the_environment() -> None:
    assert Scrubber([{"HF_TOKEN": "hunter2hunter2"}]).scrub(b"a hunter2hunter2 b") == (
        f"a {redact('HF_TOKEN', 'hunter2hunter2')} b".encode()
    )


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdef0123456789",
        "curl -H 'authorization: basic dXNlcjpwYXNz'",
        "token hf_abcdefghijklmnopqrstuvwxyz",
        "key sk-proj-abcdefghijklmnop",
        "server_args=ServerArgs(api_key='abcd-efgh-1234', port=1)",
        '{"admin_api_key": "abcd-efgh-1234"}',
        "OPENAI_API_KEY=abcd-efgh-1234 python x",
        "python -m x --api-key abcd-efgh-1234",
        "https://user@host/?access_token=abcd-efgh-1234&x=1",
        "fetching https://deploy:abcd-efgh-1234@git/x",
        "fetching https://abcd-efgh-1234-abcd@git/x",
        "DATABASE_URL='postgres://bob:abcd-efgh-1234@db/x'",
        "token: abcd-efgh-1234",
        "password=abcd-efgh-1234)",
        "Set-Cookie: session=abcd-efgh-1234; Path=/",
        '{"headers": {"cookie": "session=abcd-efgh-1234"}}',
        '{"log": "{\\"password\\": \\"abcd-efgh-1234\\", \\"x\\": 1}"}',
        'MY_PASSPHRASE="so many words abcd-efgh-1234"',
        "'--api-key', 'abcd-efgh-1234'",
        "aws_secret_access_key = abcd-efgh-1234",
        "Authorization: Token abcd-efgh-1234",
    ],
)
def test_what_looks_like_a_secret_is_taken_for_one(text: str) -> None:
    scrubbed = Scrubber().scrub(text.encode()).decode()
    assert "<redacted sha256:" in scrubbed
    for secret in ("abcd-efgh-1234", "abcdef0123456789", "dXNlcjpwYXNz", "ghijklmnop"):
        assert secret not in scrubbed


PEM = "-----BEGIN RSA PRIVATE KEY-----\n{}-----END RSA PRIVATE KEY-----".format(
    "ghijklmnop+/0123456789ABCDEFGHIJ==\n" * 3
)


@pytest.mark.parametrize(
    "text",
    [
        "cloning with ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "github_pat_11ABCDEFG0123456789_abcdefghijklmnop",
        "glpat-abcdefghijklmnopqrst",
        "nvapi-abcdefghijklmnopqrstuvwxyz",
        "aws AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dBjftJeZ4CVP-mB92K27uhbUJU1p1r",
        PEM,
        f"before\n{PEM[:100]}",
        f"{PEM[40:]}\nafter",
        json.dumps(PEM),
    ],
)
def test_what_begins_as_keys_do_is_taken_for_one(text: str) -> None:
    scrubbed = Scrubber().scrub(text.encode()).decode()
    assert "<redacted sha256:" in scrubbed
    for secret in ("ghijklmnop", "IOSFODNN7", "dBjftJeZ4", "0123456789"):
        assert secret not in scrubbed


def test_the_password_of_a_url_is_found_alone_too() -> None:
    scrubber = Scrubber([{"DATABASE_URL": "postgres://bob:hunter22%21@db/x"}], [["x", "redis://:letmein-1@db"]])
    scrubbed = scrubber.scrub(b"no user bob with hunter22! or hunter22%21; auth letmein-1 failed")
    assert not [secret for secret in (b"hunter22", b"letmein") if secret in scrubbed]


def test_a_scrubbed_text_stays_as_it_is_when_it_is_scrubbed_again() -> None:
    text = b'HF_TOKEN=abcdefgh postgres://bob:abcdefgh@db "password": "ab cd ef" Cookie: a=bcdef --api-key abcdefgh'
    once = Scrubber().scrub(text)
    assert Scrubber().scrub(once) == once


def test_bytes_that_are_no_text_stay_as_they_are() -> None:
    assert Scrubber().scrub(b"\xff\xfe HF_TOKEN=abcdefgh \x80").startswith(b"\xff\xfe HF_TOKEN=<redacted")


@given(st.text(alphabet="abK=:'\"\\ /@-_.1,;\n{}", max_size=60))
def test_any_text_is_taken(text: str) -> None:
    Scrubber().scrub(f"token {text} password{text}".encode())


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text", ["a-" * 200_000, "password" * 50_000, "key=" * 50_000, "eyJ" * 100_000, "://" * 100_000]
)
def test_a_long_text_takes_no_time_out_of_proportion(text: str) -> None:
    Scrubber().scrub(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "max_total_num_tokens=32768, max_total_tokens: 32768",
        "Prefill batch, #new-token: 104, #cached-token: 12345678, token usage: 0.01",
        '{"api_key": null, "max_total_tokens": 32768, "tokenizer_path": "/models/x"}',
        "TOKENIZERS_PARALLELISM=false MAX_TOKENS=4096",
        "ServerArgs(api_key=None, tokenizer_mode='auto', skip_tokenizer_init=False)",
        "--max-total-tokens 32768 --tokenizer-path /models/x",
        "PWD=/root/somewhere OLDPWD=/root/before SSH_AUTH_SOCK=/tmp/ssh-1/agent",
        "'eos_token': '<|end_of_text|>', pad_token=<pad> next_token: 12345678.5 HF_TOKEN=$HF_TOKEN",
        '{"key": "prefill-0 env MY_PASSWD", "value": "a"} KeyError: something cache key: abcdefghijkl',
        "http://127.0.0.1:30000/health from me@example.org, 3.14:15@16",
        "sglang:token_usage{engine_type=\"prefill\"} 0.25",
    ],
)  # fmt: skip
def test_numbers_of_tokens_and_tokenizers_are_no_secrets(text: str) -> None:
    assert Scrubber().scrub(text.encode()).decode() == text


@pytest.mark.parametrize("value", ["1", "abc", "4096", "true", "None", "   ", ""])
def test_what_would_be_everywhere_is_not_looked_for(value: str) -> None:
    text = b"1 abc 4096 true None    x"
    assert Scrubber([{"SGLANG_PATCH_TOKENIZER": value}]).scrub(text) == text
