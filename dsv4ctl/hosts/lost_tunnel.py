"""How HTTP over an SSH connection ends when that connection is lost, which is no doing of the server that was asked."""

import httpcore


class LostWhileReading(httpcore.ReadError):
    """An answer was awaited."""


class LostWhileWriting(httpcore.WriteError):
    """A request was sent."""
