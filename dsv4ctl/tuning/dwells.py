"""Times in the inflight queue as they were counted: block after block of a window, in the buckets of a histogram."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dsv4ctl.metrics.exposition import Histogram


@dataclass(frozen=True)
class Block:
    """A stretch of the window. `counts` has, for each bucket of the history and one beyond the last, the requests that
    arrived after so long; `ended` are those whose stay was ended before they had arrived: what they would have taken
    is not known, only that it was longer."""

    seconds: float
    counts: tuple[int, ...]
    ended: int = 0

    @property
    def requests(self) -> int:
        """All that left the queue."""
        return sum(self.counts) + self.ended


@dataclass(frozen=True)
class History:
    """A window. `edges`: the upper edges of the buckets in seconds, in ascending order."""

    edges: tuple[float, ...]
    blocks: tuple[Block, ...]

    @cached_property
    def requests(self) -> int:
        """All that left the queue in the window."""
        return sum(block.requests for block in self.blocks)

    @cached_property
    def ended(self) -> int:
        """Those of them that were ended early."""
        return sum(block.ended for block in self.blocks)

    @property
    def blocks_with_requests(self) -> int:
        """In how many blocks any left the queue."""
        return sum(block.requests > 0 for block in self.blocks)

    @cached_property
    def in_buckets(self) -> tuple[int, ...]:
        """For each bucket and beyond the last, how many arrived after so long."""
        return tuple(sum(block.counts[at] for block in self.blocks) for at in range(len(self.edges) + 1))

    @property
    def seconds(self) -> float:
        """The length of the window."""
        return sum(block.seconds for block in self.blocks)

    def above(self, bucket: int) -> list[int]:
        """In each block, how many stayed longer than the upper edge of this bucket, or were ended early."""
        return [sum(block.counts[bucket + 1 :]) + block.ended for block in self.blocks]

    def longer_than(self, seconds: float) -> int:
        """How many stayed longer than this, or may have: what shares a bucket with it, and what was ended early."""
        bucket = max((at for at, edge in enumerate(self.edges) if edge <= seconds), default=-1)
        return sum(self.above(bucket))


def merged(blocks: Sequence[Block], together: int) -> list[Block]:
    """Longer blocks, each of so many; what is left over at the beginning is dropped, as it is the oldest."""
    rest = len(blocks) % together
    groups = [blocks[at : at + together] for at in range(rest, len(blocks), together)]
    return [
        Block(
            sum(block.seconds for block in group),
            tuple(map(sum, zip(*(block.counts for block in group), strict=True))),
            sum(block.ended for block in group),
        )
        for group in groups
    ]


def together(histories: Sequence[History]) -> History:
    """One history of several workers that were looked at in the same moments. As long as the shortest, since one that
    was started anew has lost its beginning; without any block where their buckets differ."""
    edges = histories[0].edges
    if any(history.edges != edges for history in histories):
        return History((), ())
    length = min(len(history.blocks) for history in histories)
    blocks = [history.blocks[len(history.blocks) - length :] for history in histories]
    return History(
        edges,
        tuple(
            Block(
                max(block.seconds for block in same),
                tuple(map(sum, zip(*(block.counts for block in same), strict=True))),
                sum(block.ended for block in same),
            )
            for same in zip(*blocks, strict=True)
        ),
    )


def by_bucket(histogram: Histogram) -> tuple[int, ...]:
    """How many are in each of its buckets, which are cumulative."""
    counts = [int(count) for _, count in histogram.counts]
    return tuple(count - before for count, before in zip(counts, [0, *counts], strict=False))
