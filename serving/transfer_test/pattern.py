"""What is written: 64-bit words that say who wrote them, for whom, how large, in which write, and where they belong.

A word that is wrong then tells where it comes from: a foreign write, a late one, one that was put elsewhere, or none.
"""

from typing import Final

WORD: Final = 8
"""Bytes."""

RANKS: Final = 31
"""So many ranks a side at most: five bits, and the last value is that of POISON."""

WRITES: Final = 1 << 16
"""After so many writes the numbers begin again."""

POISON: Final = 0x7E57_0B5E_DEAD_BEEF
"""Each word of a destination before it is written. Neither all zeros nor all ones: a device that is gone reads so."""

_INDEX_BITS: Final = 32
_SEQUENCE_BITS: Final = 16
_SIZE_BITS: Final = 5
_RANK_BITS: Final = 5


def tag(source: int, destination: int, size_bytes: int, sequence: int) -> int:
    """The upper half of every word of one write: 31 bits, so that a word is a positive int64."""
    found = source
    found = found << _RANK_BITS | destination
    found = found << _SIZE_BITS | (size_bytes.bit_length() & (1 << _SIZE_BITS) - 1)
    return found << _SEQUENCE_BITS | sequence % WRITES


def word(tag_: int, index: int) -> int:
    """The word at an index of a write."""
    return tag_ << _INDEX_BITS | index


def origin(found: int) -> str:
    """What a word that should not be there is, in words for a person."""
    if found == POISON:
        return "nothing was written there"
    if found == 0:
        return "zeros"
    if found == -1:
        return "all ones"
    tag_, index = found >> _INDEX_BITS, found & (1 << _INDEX_BITS) - 1
    sequence = tag_ & WRITES - 1
    tag_ >>= _SEQUENCE_BITS
    size_bits = tag_ & (1 << _SIZE_BITS) - 1
    tag_ >>= _SIZE_BITS
    destination = tag_ & (1 << _RANK_BITS) - 1
    source = tag_ >> _RANK_BITS
    if not (0 <= source < RANKS and destination < RANKS and size_bits):
        return f"{found & (1 << 64) - 1:#018x}, which nobody wrote"
    return f"word {index} of write {sequence}, from source rank {source} to destination rank {destination}"
