"""Secrets taken out of text that others wrote: logs, metrics, answers. An engine prints its arguments, keys and all.

Two nets. What is known to be a secret, because a variable or flag of that name holds it, is found wherever it stands,
also as JSON, Python or a URL writes it. What only looks like one (a bearer token, `api_key='...'`) is taken for one.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import quote, quote_plus

from dsv4ctl.redaction import is_secret, is_secret_flag, redact

SHORT, LONG = 4, 8
"""A value of fewer characters is not looked for, nor a number of fewer digits: every 1 would be gone from a text."""

_LINE_OF_A_SECRET = 16
# What a switch says, under whatever name, is no secret.
_WORDS = frozenset({"true", "false", "none", "null"})

_VALUE = rb"(?!<redacted)(?!\d{1,7}\b)(?!(?:None|null|[Tt]rue|[Ff]alse)\b)"
_FORMS = (
    re.compile(rb"()(?<![\w-])((?:hf_|sk-)[A-Za-z0-9_-]{16,})"),
    re.compile(rb"(\b(?:[Bb]earer|[Bb]asic|BEARER|BASIC)\s+)(" + _VALUE + rb"[A-Za-z0-9._~+/=-]{8,})"),
    # A variable as a shell writes it, and a field or an argument as JSON, Python, YAML or a URL does.
    re.compile(rb"(\b[A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD)[A-Z0-9_]*=[\"']?)(" + _VALUE + rb"[^\s\"',;&]{4,})"),
    re.compile(
        rb"(\b[\w-]*(?:api[-_]?key|secret|password|passwd|(?:auth|access|hf)[-_]?token)[\"']?\s*[=:]\s*[\"']?)("
        + _VALUE
        + rb"[^\s\"',;&}\])]{8,})",
        re.IGNORECASE,
    ),
    re.compile(
        rb"(--?[\w-]*(?:api-?key|token|secret|password)[ =][\"']?)(" + _VALUE + rb"[^\s\"']{4,})", re.IGNORECASE
    ),
)


class Scrubber:
    """Takes the secrets of some environments and command lines out of texts. A fingerprint of each stays."""

    def __init__(self, environs: Iterable[Mapping[str, str]] = (), argvs: Iterable[Sequence[str]] = ()) -> None:
        known: dict[bytes, bytes] = {}
        for value in (*_of_environs(environs), *_of_argvs(argvs)):
            if _is_worth_hiding(value):
                shown = redact("SECRET", value).encode()
                known |= dict.fromkeys(_written(value), shown)
        self._known = known
        # The longest first: a secret may contain another.
        longest = sorted(known, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest))) if known else None

    def scrub(self, data: bytes) -> bytes:
        """The same text without them."""
        if self._pattern is not None:
            data = self._pattern.sub(lambda found: self._known[found[0]], data)
        for form in _FORMS:
            data = form.sub(_hidden, data)
        return data


def _hidden(found: "re.Match[bytes]") -> bytes:
    return found[1] + redact("SECRET", found[2].decode(errors="replace")).encode()


def _of_environs(environs: Iterable[Mapping[str, str]]) -> Iterator[str]:
    for environ in environs:
        yield from (value for name, value in environ.items() if is_secret(name))


def _of_argvs(argvs: Iterable[Sequence[str]]) -> Iterator[str]:
    for argv in argvs:
        for at, word in enumerate(argv):
            flag, equals, value = word.partition("=")
            if not flag.startswith("-") or not is_secret_flag(flag):
                continue
            if equals:
                yield value
            elif at + 1 < len(argv):
                yield argv[at + 1]


def _is_worth_hiding(value: str) -> bool:
    value = value.strip()
    return len(value) >= (LONG if value.isdigit() else SHORT) and value.lower() not in _WORDS


def _written(value: str) -> Iterator[bytes]:
    """A secret as texts may have it."""
    lines = [line.strip() for line in value.splitlines()]
    for text in (value.strip(), *(line for line in lines if len(line) >= _LINE_OF_A_SECRET)):
        for written in (
            text,
            json.dumps(text)[1:-1],
            json.dumps(text, ensure_ascii=False)[1:-1],
            repr(text)[1:-1],
            quote(text, safe=""),
            quote_plus(text),
        ):
            yield written.encode(errors="surrogateescape")
