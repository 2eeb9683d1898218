"""Which completions may hold a text: bits for each three characters in a row.

A block keeps `num_bits` rows of bits, a bit a completion. A trigram's hash names three
rows, in which the bits of the completions that hold it are set, beside those of others:
a Bloom filter a completion, stored by its bits. So the completions that may hold a text
are those whose bits are set in the rows of all its trigrams; whether they do is seen in
the text itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint8]
Codes = NDArray[np.uint64]

# With 5 to 10 rows a trigram, and three of them set, one in 20 to 80 of other texts is
# not ruled out by a trigram.
ROWS_A_TRIGRAM = 5
ROW_SHIFTS = np.array([0, 21, 42], np.uint64)  # of a hash, where each row's bits begin
FEWEST_BITS, MOST_BITS = 2**8, 2**15
MOST_SAMPLED = 512
TEXTS_AT_ONCE = 256  # a multiple of 8, as bits are packed


def fold(text: str) -> str:
    """As PostgreSQL's lower() has it, where it matters here."""
    # Python makes two characters of this one, PostgreSQL one.
    return text.replace("İ", "i").lower()


def needed_trigrams(text: str) -> Codes:
    """Hashes of trigrams that every text has which holds this one.

    Letters outside ASCII that have case are left out: it changes differently from one
    PostgreSQL to another.
    """
    folded = fold(text)
    codes = _codes(folded)
    if len(codes) < 3:
        return codes[:0]
    is_sure = np.array([c.isascii() or c.lower() == c.upper() for c in folded])
    sure = is_sure[:-2] & is_sure[1:-1] & is_sure[2:]
    return np.unique(_hash(codes)[sure])


def rows_of(hashes: Codes, num_bits: int) -> NDArray[np.int64]:
    """[hashes, 3]"""
    rows = (hashes[:, None] >> ROW_SHIFTS) & np.uint64(num_bits - 1)
    return rows.astype(np.int64)


def choose_num_bits(texts: Sequence[str]) -> int:
    """A power of two, from how many trigrams such texts have."""
    sampled = texts[:: max(1, len(texts) // MOST_SAMPLED)]
    num_trigrams = [len(np.unique(_hash(_codes(fold(t))))) for t in sampled]
    wanted = ROWS_A_TRIGRAM * (sum(num_trigrams) / max(1, len(sampled)))
    return int(min(max(2 ** int(np.ceil(np.log2(wanted + 1))), FEWEST_BITS), MOST_BITS))


def sign(texts: Sequence[str], num_bits: int) -> Bits:
    """[num_bits, texts / 8]; the first text's bit is the highest of its byte."""
    signed = np.zeros((num_bits, -(-len(texts) // 8)), np.uint8)
    for first in range(0, len(texts), TEXTS_AT_ONCE):
        some = [fold(text) for text in texts[first : first + TEXTS_AT_ONCE]]
        packed = np.packbits(_bits(some, num_bits), axis=0).T
        signed[:, first // 8 : first // 8 + packed.shape[1]] = packed
    return signed


def _bits(texts: Sequence[str], num_bits: int) -> Bits:
    """[texts, num_bits], each 0 or 1"""
    bits = np.zeros(len(texts) * num_bits, np.uint8)
    owners = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    codes = _codes("".join(texts))
    if len(codes) > 2:
        is_whole = owners[:-2] == owners[2:]
        begins = owners[:-2][is_whole] * num_bits
        for rows in rows_of(_hash(codes)[is_whole], num_bits).T:
            bits[begins + rows] = 1
    return bits.reshape(len(texts), num_bits)


def _codes(text: str) -> Codes:
    coded = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    return coded.astype(np.uint64)


def _hash(codes: Codes) -> Codes:
    """Of each three in a row, which 63 bits hold; mixed as splitmix64 does it."""
    if len(codes) < 3:
        return np.empty(0, np.uint64)
    mixed = codes[:-2] << np.uint64(42) | codes[1:-1] << np.uint64(21) | codes[2:]
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashed: Codes = mixed ^ (mixed >> np.uint64(31))
    return hashed
