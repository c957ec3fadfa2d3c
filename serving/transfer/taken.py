"""What a thread last took from its socket or queue, so that it can be named when it cannot be dealt with."""

from collections.abc import Callable

from serving.untyped import Untyped


class Taken:
    """Stands in for the `take` of a socket or queue that one thread reads. `last` is what it took, `count` how many."""

    def __init__(self, take: Callable[..., Untyped]) -> None:
        self._take = take
        self.last: Untyped = None
        self.count = 0

    def take(self, *args: Untyped, **named: Untyped) -> Untyped:
        """The next one, once there is one."""
        taken = self._take(*args, **named)
        self.last = taken
        self.count += 1
        return taken
