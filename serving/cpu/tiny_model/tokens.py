"""The tokens of the tiny model: the 256 bytes, and the code word by which each is known inside."""

import functools

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

VOCABULARY = 256
CODE_LENGTH = 16

CONTEXT = 6
"""Bytes of context that are compared: the current byte and the five before it."""

BEGIN, END, PAD, REPLY = 0xFE, 0xFF, 0xFD, 0xFC
SPECIAL = {BEGIN: "<|begin|>", END: "<|end|>", PAD: "<|pad|>", REPLY: "<|reply|>"}
"""Bytes that never occur in UTF-8 and stand for something else than themselves."""


@functools.cache
def codebook() -> Integers:
    """The Nordstrom-Robinson code: 256 words of 16 signs that differ in at least 6 places.

    Row b is the code of byte b. It is the Gray image of the octacode, the quaternary code spanned by the cyclic
    shifts of 3 1 2 1 0 0 0 with a check digit. Two rows have the inner product 16 (equal), 4, 0, -4 or -16.
    """
    generator = np.array([[*np.roll([3, 1, 2, 1, 0, 0, 0], shift), 1] for shift in range(4)])
    digits = np.array([[byte >> (2 * place) & 3 for place in range(4)] for byte in range(VOCABULARY)])
    gray = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]])
    code: Integers = gray[digits @ generator % 4].reshape(VOCABULARY, CODE_LENGTH)
    return code


@functools.cache
def products() -> Integers:
    """The inner product of the code words of each two bytes."""
    code = codebook()
    inner: Integers = code @ code.T
    return inner
