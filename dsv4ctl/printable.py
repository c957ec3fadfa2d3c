"""What an engine or a client said, for a terminal: it may hold anything, and must forge no line and move no cursor."""


def printable(text: str) -> str:
    """The text with what cannot be printed written as Python would escape it."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
