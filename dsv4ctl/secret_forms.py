"""How secrets look in a text: the value of a field or a flag of that name, a header, a password in a URL, a private key
in PEM, and what those who give out keys make them begin with, so that they are found."""

import re
from collections.abc import Callable

from dsv4ctl.secret_names import is_secret_field, is_secret_flag

Hide = Callable[[str], str]
"""What stands in a secret's place."""

SHORT, LONG = 4, 8
"""A value of fewer characters is no secret, nor a number of fewer digits: every 1 would be gone from a text."""

# What a switch says, under whatever name, is no secret.
WORDS = frozenset({"true", "false", "none", "null"})

_LONGEST = 4096
# A value in quotes goes to their end; quotes within quotes have backslashes, as many as the first of them.
_VALUE = re.compile(
    rf"""
    (?: (?P<escapes>\\*) (?P<quote>["'])
        (?P<quoted> (?: (?! (?<!\\)(?P=escapes)(?P=quote) ) [^\r\n] ){{1,{_LONGEST}}} )
    |   (?P<bare> (?: [^\s"',;&\\] | \\(?!["']) ){{1,{_LONGEST}}} ) )
    """,
    re.VERBOSE,
)
_FIELD = re.compile(
    r"""(?<![\w-]) (?P<name> (?=[\w-]{0,80}(?i:key|token|secret|pass|pwd|cred|auth|cookie)) [A-Za-z_][\w-]{2,80} )
    (?P<sign> \\*["']? [ \t]{0,4} [=:] [ \t]{0,4} ) """,
    re.VERBOSE,
)
_FLAG = re.compile(r"""(?<![\w-]) (?P<name> --?[A-Za-z][\w-]{1,80} ) (?: = | \\*["']? ,? [ \t]{1,4} ) """, re.VERBOSE)
_PLACEHOLDER = re.compile(r"<redacted.*|<\|.*|<[/a-z_ -]*>|\$\w+|\$\{\w+\}|\*+")
_NUMBER = re.compile(r"[\d.,%]+")

# The first group stays, the second is the secret.
_FORMS = (
    re.compile(r"(-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----)((?:(?!-----BEGIN).){1,8000}?)(?=-----END )", re.DOTALL),
    # Of one that is cut off, the lines that are there.
    re.compile(r"(-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----)((?:(?:\s|\\[rn])+[A-Za-z0-9+/=]{16,})+)"),
    re.compile(
        r"()(?<![A-Za-z0-9+/=])((?:[A-Za-z0-9+/=]{16,128}+(?:\s|\\[rn])++){1,200}+)(?=-----END [A-Z0-9 ]*PRIVATE KEY)"
    ),
    re.compile(
        r"""((?<![\w-])(?:set-)?cookie\\*["']?[ \t]*[=:][ \t]*+\\*+["']?+)(?!<redacted)"""
        r"""((?:[^\r\n"'\\]|\\(?!["'])){4,})""",
        re.IGNORECASE,
    ),
    re.compile(r"(\b(?:[Bb]earer|[Bb]asic|BEARER|BASIC)\s++)(?!<redacted)(?!\d{1,7}\b)([A-Za-z0-9._~+/=-]{8,})"),
    re.compile(
        r"""((?<![\w])authorization\\*["']?[ \t]*[=:][ \t]*+\\*+["']?+(?:[A-Za-z]+[ \t]++)?+)(?!<redacted)"""
        r"""([^\s"'\\]{8,})""",
        re.IGNORECASE,
    ),
    re.compile(r"""(\b[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s/?#"<>@:]*:)(?!<redacted)([^\s/?#"<>]+)(?=@)"""),
    # Nobody is called so: it is a token in the place of a user.
    re.compile(r"""(\bhttps?://)([^\s/?#"'<>@:]{16,})(?=@)""", re.IGNORECASE),
    re.compile(
        r"""([?&](?:key|sig|signature|x-amz-(?:signature|credential|security-token))=)(?!<redacted)([^\s"'&#\\]{8,})""",
        re.IGNORECASE,
    ),
    re.compile(r"()(?<![\w-])((?:hf_|sk-|gh[oprsu]_|github_pat_|glpat-|nvapi-|xox[abeoprs]-)[A-Za-z0-9_-]{16,})"),
    re.compile(r"()(?<![A-Za-z0-9])((?:AKIA|ASIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{35})(?![A-Za-z0-9])"),
    re.compile(r"()(?<![\w-])(eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)*)"),
)


def hide_in(text: str, hide: Hide) -> str:
    """The text with each part that looks like a secret replaced by what `hide` makes of it."""
    text = _hide_named(text, _FIELD, is_secret_field, _is_value_of_field, hide)
    text = _hide_named(text, _FLAG, is_secret_flag, _is_value_of_flag, hide)
    for form in _FORMS:
        text = form.sub(lambda found: found[1] + hide(found[2]), text)
    return text


def secrets_in(text: str) -> tuple[str, ...]:
    """The parts of a text that look like secrets."""
    found: list[str] = []

    def note(secret: str) -> str:
        found.append(secret)
        return secret

    hide_in(text, note)
    return tuple(dict.fromkeys(found))


def is_worth_hiding(value: str) -> bool:
    """Whether a value under a secret's name can be told from what stands in every text."""
    value = value.strip()
    return len(value) >= (LONG if value.isdigit() else SHORT) and value.lower() not in WORDS


def _hide_named(
    text: str,
    names: "re.Pattern[str]",
    is_secret_name: Callable[[str], bool],
    is_value: Callable[["re.Match[str]", "re.Match[str]", str], bool],
    hide: Hide,
) -> str:
    """Hide the values of names. What is none is passed by its name alone: what follows may hold another."""
    parts: list[str] = []
    at = 0
    while named := names.search(text, at):
        found = _VALUE.match(text, named.end()) if is_secret_name(named["name"]) else None
        value = "" if found is None else found["quoted"] or found["bare"].rstrip(")]}")
        if found is not None and is_value(named, found, value):
            begin = found.start(found.lastgroup or 0)
            parts += [text[at:begin], hide(value)]
            at = begin + len(value)
        else:
            parts.append(text[at : named.end("name")])
            at = named.end("name")
    return "".join((*parts, text[at:]))


def _is_value_of_field(named: "re.Match[str]", found: "re.Match[str]", value: str) -> bool:
    name = named["name"]
    if _PLACEHOLDER.fullmatch(value) or not is_worth_hiding(value):
        return False
    if "token" in name.lower() and _NUMBER.fullmatch(value):
        return False
    # A sentence of a log has a colon after any word; a variable has its value right behind its name.
    return len(value) >= LONG or (name.isupper() and named["sign"].endswith("=")) or found["quoted"] is not None


def _is_value_of_flag(_: "re.Match[str]", __: "re.Match[str]", value: str) -> bool:
    return not _PLACEHOLDER.fullmatch(value) and is_worth_hiding(value)
