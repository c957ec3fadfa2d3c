"""Secrets never reach a terminal, a journal or the state directory."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence

from dsv4ctl.secret_forms import hide_in
from dsv4ctl.secret_names import is_secret, is_secret_flag

_FINGERPRINT = re.compile(r"<redacted sha256:[0-9a-f]{8}>")


def fingerprint(secret: str) -> str:
    """What stands in a secret's place, and still tells whether two secrets are the same."""
    return f"<redacted sha256:{hashlib.sha256(secret.encode(errors='surrogatepass')).hexdigest()[:8]}>"


def has_fingerprint(text: str) -> bool:
    """Whether a secret was taken out of this."""
    return bool(_FINGERPRINT.search(text))


def redact_text(text: str) -> str:
    """The text with fingerprints in place of what looks like a secret in it: the password of a URL, a token."""
    return hide_in(text, fingerprint)


def redact(name: str, value: str) -> str:
    """The value of a variable as it can be shown and stored: a fingerprint of it where its name is that of a secret,
    else the value with fingerprints in place of what looks like a secret in it."""
    if not is_secret(name):
        return redact_text(value)
    return _hidden(value)


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """An environment that can be shown and stored."""
    return {name: redact(name, value) for name, value in env.items()}


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line that can be shown and stored: the values of flags such as --api-key are fingerprints, and so is
    what looks like a secret in any word."""
    return tuple(
        redact_text(word) if secret is None else f"{word}{_hidden(secret)}" for word, secret in secret_words(argv)
    )


def secret_words(argv: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each word as the part that can be shown, and the value of a secret's flag behind it; None where that is none."""
    # The word after such a flag is its value whatever it begins with; one that takes several has them up to the next.
    first, more = False, False
    for word in argv:
        is_flag = word.startswith("-")
        if first or (more and not is_flag):
            yield "", word
            first = False
            continue
        flag, equals, value = word.partition("=")
        secret = is_flag and is_secret_flag(flag)
        yield (f"{flag}=", value) if secret and equals else (word, None)
        first = secret and not equals
        more = first and flag.lower().endswith("s")


def stands_for(stored: str, name: str, value: str) -> bool:
    """Whether `stored` is what was kept of this value. An older version may have kept it clear, or as a whole as a
    fingerprint: what is a secret was another question then."""
    return stored in {value, redact(name, value), fingerprint(value)}


def argv_stands_for(stored: Sequence[str], argv: Sequence[str]) -> bool:
    """Whether `stored` is what was kept of this command line, by this version or an older one."""
    return len(stored) == len(argv) and all(
        kept in {word, shown, fingerprint(word)}
        for kept, word, shown in zip(stored, argv, redact_argv(argv), strict=True)
    )


def _hidden(value: str) -> str:
    # An empty one is a fault to see.
    return fingerprint(value) if value and not _FINGERPRINT.fullmatch(value) else value
