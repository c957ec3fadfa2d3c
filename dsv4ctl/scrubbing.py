"""Secrets taken out of text that others wrote: logs, metrics, answers. An engine prints its arguments, keys and all.

Two nets. What is known to be a secret, because a variable or flag of that name holds it, is found wherever it stands,
also as JSON, Python or a URL writes it. What only looks like one (a bearer token, `api_key='...'`) is taken for one.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import quote, quote_plus, unquote

from dsv4ctl.redaction import fingerprint, redact_text, secret_words
from dsv4ctl.secret_forms import LONG, is_worth_hiding, secrets_in
from dsv4ctl.secret_names import is_secret

_LINE_OF_A_SECRET = 16


class Scrubber:
    """Takes the secrets of some environments and command lines out of texts. A fingerprint of each stays."""

    def __init__(self, environs: Iterable[Mapping[str, str]] = (), argvs: Iterable[Sequence[str]] = ()) -> None:
        known: dict[bytes, bytes] = {}
        for value in (*_of_environs(environs), *_of_argvs(argvs)):
            if is_worth_hiding(value):
                known |= dict.fromkeys(_written(value), fingerprint(value).encode())
        self._known = known
        # The longest first: a secret may contain another.
        longest = sorted(known, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest))) if known else None

    def scrub(self, data: bytes) -> bytes:
        """The same text without them."""
        if self._pattern is not None:
            data = self._pattern.sub(lambda found: self._known[found[0]], data)
        return redact_text(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def _of_environs(environs: Iterable[Mapping[str, str]]) -> Iterator[str]:
    for environ in environs:
        for name, value in environ.items():
            if is_secret(name):
                yield value
            yield from _parts(value)


def _of_argvs(argvs: Iterable[Sequence[str]]) -> Iterator[str]:
    for word, secret in (pair for argv in argvs for pair in secret_words(argv)):
        if secret is None:
            yield from _parts(word)
        else:
            yield secret


def _parts(value: str) -> Iterator[str]:
    """Secrets within a value, such as the password of a URL. A short one, which many are (`guest`), is found where it
    stands in a URL again, and not looked for by itself."""
    for secret in secrets_in(value):
        yield from (form for form in (secret, unquote(secret)) if len(form) >= LONG)


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
