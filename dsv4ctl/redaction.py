"""Secrets never reach a terminal, a journal or the state directory."""

import hashlib
import re
from collections.abc import Mapping, Sequence

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
# Names that carry one of those words and hold nothing secret. An exact list: a pattern would let a secret through.
_HARMLESS = frozenset({"SSH_AUTH_SOCK", "TOKENIZERS_PARALLELISM", "SGLANG_DSV4_BF16_INDEX_K"})
_SECRET_FLAG = re.compile(r"^--?[\w-]*(api-?key|token|secret|password)$", re.IGNORECASE)
_FINGERPRINT = re.compile(r"<redacted sha256:[0-9a-f]{8}>")
_SECRET_FLAG_WITH_VALUE = re.compile(r"^(--?[\w-]*(?:api-?key|token|secret|password))=(.*)$", re.IGNORECASE | re.DOTALL)


def is_secret(name: str) -> bool:
    """Whether a variable of this name may hold a secret."""
    return name not in _HARMLESS and bool(_SECRET_NAME.search(name))


def is_secret_flag(flag: str) -> bool:
    """Whether a flag of this name (`api-key`, with or without dashes before it) holds a secret."""
    return bool(_SECRET_FLAG.match(f"--{flag.lstrip('-')}"))


def is_fingerprint(value: str) -> bool:
    """Whether this stands for a secret."""
    return bool(_FINGERPRINT.fullmatch(value))


def redact(name: str, value: str) -> str:
    """The value, or a fingerprint of it that still tells whether two secrets are the same."""
    if not is_secret(name) or not value:
        return value
    return f"<redacted sha256:{hashlib.sha256(value.encode()).hexdigest()[:8]}>"


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """An environment that can be shown and stored."""
    return {name: redact(name, value) for name, value in env.items()}


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line that can be shown and stored: the values of flags such as --api-key are fingerprints."""
    shown: list[str] = []
    secret_next = False
    for word in argv:
        if secret_next:
            shown.append(redact("SECRET", word))
            secret_next = False
            continue
        joined = _SECRET_FLAG_WITH_VALUE.match(word)
        shown.append(f"{joined[1]}={redact('SECRET', joined[2])}" if joined else word)
        secret_next = bool(_SECRET_FLAG.match(word))
    return tuple(shown)
