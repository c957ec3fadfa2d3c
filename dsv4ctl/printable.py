"""What an engine, a client or a host said, for a terminal: it may hold anything, and must forge no line and move no
cursor."""

import re

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def printable(text: str) -> str:
    """The text with what cannot be printed written as Python would escape it."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def printable_lines(text: str) -> str:
    """The same for a text whose lines and tabs are its own. The rest is written as JSON and TOML would."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else _escaped(sign) for sign in text.replace("\r\n", "\n")
    )


def without_colours(line: str) -> str:
    """A line of a log without the sequences that colour it."""
    return _COLOUR.sub("", line)


def _escaped(sign: str) -> str:
    return f"\\u{ord(sign):04x}" if ord(sign) < 0x10000 else f"\\U{ord(sign):08x}"
