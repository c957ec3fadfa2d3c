"""Which names hold secrets: of environment variables, of flags, and of fields in texts that others wrote."""

import re

_SECRET_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|PWD|CREDENTIAL|COOKIE|AUTHORIZATION"
    r"|(?:^|_)(?:PASS|CREDS)(?:_|$)|AUTH$"
)
# What a model reads and writes are tokens, too, and an engine has dozens of names that count them.
_TOKENS_OF_TEXT = re.compile(
    r"TOKENIZ"
    r"|(?:MAX|MIN|NUM|TOTAL|CHUNK|STREAM)_(?:[A-Z0-9]+_)*TOKENS"
    r"|(?:PER|NEW|NEXT|FIRST|LAST|INTER|CACHED|BOS|EOS|PAD|UNK|SEP|CLS|MASK|STOP|IMAGE|VIDEO|AUDIO|SPECIAL)_TOKENS?"
    r"|TOKENS?_(?:IDS|RATIO|USAGE|BLOCK|ORACLE|ASSERT|PER|BUCKETS)"
)
# Names that carry one of those words and hold nothing secret. An exact list: a pattern would let a secret through.
_HARMLESS = frozenset(
    {
        *("PWD", "OLDPWD"),
        *("SGLANG_LOG_DECODE_GRAPH_KEY", "SGLANG_ROUTING_KEY_POLICY_DEBUG_LOG"),
        *("SGLANG_SIMULATE_ACC_TOKEN_MODE", "SGLANG_KV_CANARY_PERTURB_REQ_TO_TOKEN_PROB"),
    }
)
_ENDING = (
    r"(?:(?:API|ACCESS|SECRET|PRIVATE|SIGNING|ENCRYPTION|MASTER|ACCOUNT|SESSION|LICENSE|DEPLOY|AUTH)_?KEYS?(?:_ID)?"
    r"|TOKENS?|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|PASSCODE|CREDENTIALS?|_PWD|_PASS|_CREDS|_AUTH)$"
)
_FIELD = re.compile(_ENDING)
_FLAG = re.compile(rf"{_ENDING}|^(?:AUTH|COOKIES?|AUTHORIZATION|PASS|PWD)$")
_COUNTED = re.compile(r"(?:^|_)TOKENS$")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def is_secret(name: str) -> bool:
    """Whether a variable of this name may hold a secret."""
    upper = _upper(name)
    return upper not in _HARMLESS and bool(_SECRET_NAME.search(_TOKENS_OF_TEXT.sub("", upper)))


def is_secret_flag(flag: str) -> bool:
    """Whether a flag of this name (`api-key`, with or without dashes before it) holds a secret."""
    return _ends_secret(flag.lstrip("-"), _FLAG)


def is_secret_field(name: str) -> bool:
    """Whether what a text says under this name (`token: ...`, `"api_key": ...`) is a secret. In a text a key is that of
    a table, mostly: of names that are not written as those of variables are only those that end in a word for a secret
    count."""
    return is_secret(name) if name.isupper() else _ends_secret(name, _FIELD)


def _ends_secret(name: str, endings: "re.Pattern[str]") -> bool:
    upper = _upper(name)
    return (
        upper not in _HARMLESS and not _COUNTED.search(upper) and bool(endings.search(_TOKENS_OF_TEXT.sub("", upper)))
    )


def _upper(name: str) -> str:
    return _CAMEL.sub("_", name).replace("-", "_").upper()
