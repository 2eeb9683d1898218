"""Statistics of a version's rows: lengths, answer types, duplicates, near duplicates.

Memory per row: 32 bytes, and 256 more if it is compared for near duplicates.
"""

from __future__ import annotations

import json
import re
import unicodedata
from binascii import crc32
from collections import Counter, defaultdict
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard.datasets.row import Prompt, Row
from trainer.rewards.rule import Answer, answers_of, message_text

MAX_COMPARED = 100_000
SHOWN_GROUPS = 100
SHOWN_OF_GROUP = 10
NUM_BINS = 40

Hashes = NDArray[np.uint64]
Positions = NDArray[np.int64]

MISSING = "none"
EMPTY = "empty"
# The first match wins.
_PATTERNS = (
    ("integer", re.compile(r"[+-]?(\d+|\d{1,3}(,\d{3})+)")),
    (
        "decimal",
        re.compile(
            r"[+-]?(\d+|\d{1,3}(,\d{3})+)?\.\d+|[+-]?\d+\.|[+-]?\d+(\.\d+)?[eE][+-]?\d+"
        ),
    ),
    ("fraction", re.compile(r"[+-]?\d+\s*/\s*\d+")),
    ("percentage", re.compile(r"[+-]?\d+(\.\d+)?\s*\\?%")),
    ("letter", re.compile(r"\(?[A-Za-z]\)?[.:)]?")),
    ("yes or no", re.compile(r"yes|no|true|false", re.IGNORECASE)),
)
_LATEX = re.compile(r"\\[A-Za-z]+|\$[^$]+\$|\^\{|_\{")
_LONGEST_JSON = 100_000


def answer_type(answer: Answer | None) -> str:
    """
    >>> answer_type(" -1,024 ")
    'integer'
    """
    if answer is None:
        return MISSING
    if isinstance(answer, list):
        return "several answers"
    text = answer.strip()
    if not text:
        return EMPTY
    for name, pattern in _PATTERNS:
        if pattern.fullmatch(text):
            return name
    if "\\boxed{" in text:
        return "boxed"
    if _LATEX.search(text):
        return "LaTeX"
    if _is_json(text):
        return "JSON"
    return "text" if "\n" not in text else "text of several lines"


def _is_json(text: str) -> bool:
    if text[0] + text[-1] not in ("{}", "[]") or len(text) > _LONGEST_JSON:
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


# Near duplicates by MinHash (Broder 1997): the signature of a text has the minima of 64
# hash functions over its three-word shingles. The share of equal values estimates the
# Jaccard similarity. Only texts with an equal band of four values are compared, so the
# work is linear in the texts; at 80 % similarity, 1 in 4,900 pairs is missed.

SIMILARITY = 0.8
NUM_HASHES = 64
BAND = 4
MIN_WORDS = 5  # below, one word changes the similarity too much
MAX_WORDS = 20_000  # of a longer text, the first ones
_AT_ONCE = 4_096

_WORD = re.compile(r"\w+|[^\w\s]")
_draw = np.random.Generator(np.random.PCG64(0))
# Odd, so that multiplying is a bijection on 64 bits.
_FACTORS = _draw.integers(2**63, size=NUM_HASHES, dtype=np.uint64) * 2 + 1
_SHIFTS = _draw.integers(2**63, size=NUM_HASHES, dtype=np.uint64)
_MIX = [np.uint64(value) for value in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)]
_HALF = np.uint64(32)

Signature = NDArray[np.uint32]


def signature(text: str) -> Signature | None:
    """[NUM_HASHES]; None for a text of fewer than MIN_WORDS words."""
    words = _WORD.findall(text.casefold())[:MAX_WORDS]
    if len(words) < MIN_WORDS:
        return None
    codes = np.fromiter((crc32(w.encode()) for w in words), np.uint64, len(words))
    shingles = (codes[:-2] * _MIX[0] + codes[1:-1]) * _MIX[1] + codes[2:]
    shingles ^= shingles >> _HALF
    smallest = np.full(NUM_HASHES, 2**32 - 1, np.uint64)
    for start in range(0, len(shingles), _AT_ONCE):
        part = shingles[start : start + _AT_ONCE, None]
        np.minimum(
            smallest,
            ((part * _FACTORS + _SHIFTS) >> _HALF).min(axis=0),
            out=smallest,
        )
    return smallest.astype(np.uint32)


def similarity(
    text_signature: Signature, others: NDArray[np.uint32]
) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = (others == text_signature).mean(axis=-1)
    return shares


def find_groups(signatures: NDArray[np.uint32]) -> list[list[int]]:
    """Indexes of texts that are near to one another, the largest group first."""
    leaders = list(range(len(signatures)))

    def leader(index: int) -> int:
        while leaders[index] != index:
            leaders[index] = leaders[leaders[index]]
            index = leaders[index]
        return index

    # Each text of a band's bucket with that bucket's first, where they are near.
    pairs: set[tuple[int, int]] = set()
    for start in range(0, NUM_HASHES, BAND):
        # Indexes of equal rows, where there are several.
        band = signatures[:, start : start + BAND]
        order = np.lexsort(band.T[::-1])
        differs = (band[order[1:]] != band[order[:-1]]).any(axis=1)
        parts = np.split(order, np.flatnonzero(differs) + 1)
        for bucket in [np.sort(part) for part in parts if len(part) > 1]:
            first, others = int(bucket[0]), bucket[1:]
            near = similarity(signatures[first], signatures[others]) >= SIMILARITY
            pairs |= {(first, index) for index in others[near].tolist()}
    for pair in sorted(pairs):
        smaller, larger = sorted(map(leader, pair))
        leaders[larger] = smaller
    groups = defaultdict(list)
    for index in range(len(leaders)):
        groups[leader(index)].append(index)
    several = [group for group in groups.values() if len(group) > 1]
    return sorted(several, key=lambda group: (-len(group), group[0]))


def prompt_text(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    return "\n".join(map(message_text, prompt))


def prompt_key(prompt: Prompt) -> str:
    """Return a key that differs between a chat and its text."""
    return f"{'' if isinstance(prompt, str) else 'chat'}\0{prompt}"


def normalized(text: str) -> str:
    """Return the text without case, repeated white space and full-width forms."""
    text = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(text.split())


def hash_of(text: str) -> int:
    """Return 64 bits: a million texts collide with probability 1 in 37 million."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


class RowStatistics:
    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.num_added = 0
        self._prompt_hashes = np.zeros(num_rows, np.uint64)
        self._pair_hashes = np.zeros(num_rows, np.uint64)
        self._plain_hashes = np.zeros(num_rows, np.uint64)
        self._prompt_chars = np.zeros(num_rows, np.uint32)
        self._answer_chars: list[int] = []
        self._types: Counter[str] = Counter()
        self._first_of: dict[str, int] = {}  # the first row of each type
        # Every n-th row, so that the sample covers the whole version.
        self._every = -(-num_rows // MAX_COMPARED)
        self._compared: list[int] = []
        size = -(-num_rows // self._every)
        self._signatures = np.zeros((size, NUM_HASHES), np.uint32)

    def add(self, row: Row) -> None:
        at, text = self.num_added, prompt_text(row.prompt)
        prompt = prompt_key(row.prompt)
        self._prompt_hashes[at] = hash_of(prompt)
        self._pair_hashes[at] = hash_of(f"{prompt}\0{row.answer!r}")
        self._plain_hashes[at] = hash_of(normalized(text))
        self._prompt_chars[at] = len(text)
        kind = answer_type(row.answer)
        self._types[kind] += 1
        self._first_of.setdefault(kind, at)
        if row.answer is not None:
            self._answer_chars.append(max(map(len, answers_of(row.answer))))
        if at % self._every == 0 and (values := signature(text)) is not None:
            self._signatures[len(self._compared)] = values
            self._compared.append(at)
        self.num_added += 1

    def result(self) -> dict[str, Any]:
        assert self.num_added == self.num_rows, "every row is added"
        kinds = self._types
        same_row, same_prompt, same_words, first_rows = _equal_by(
            self._pair_hashes, self._prompt_hashes, self._plain_hashes
        )
        # Only the first of rows with the same words is compared.
        is_first = np.zeros(self.num_rows, bool)
        is_first[first_rows] = True
        compared = np.array(self._compared, np.int64)
        indexes = np.flatnonzero(is_first[compared])
        groups = find_groups(self._signatures[indexes])
        positions = [[int(compared[indexes[i]]) for i in group] for group in groups]
        return {
            "num_rows": self.num_rows,
            "missing_answers": kinds.pop(MISSING, 0),
            "empty_answers": kinds.pop(EMPTY, 0),
            "answer_types": kinds.most_common(),
            "first_of_types": self._first_of,
            "prompt_chars": describe(self._prompt_chars),
            "answer_chars": describe(np.array(self._answer_chars, np.uint32)),
            "same_row": same_row,
            "same_prompt": same_prompt,
            "same_words": same_words,
            "near": {
                "num_more": sum(len(group) - 1 for group in positions),
                "num_groups": len(positions),
                "shown": [
                    list(group[:SHOWN_OF_GROUP]) for group in positions[:SHOWN_GROUPS]
                ],
                "sizes": [len(group) for group in positions[:SHOWN_GROUPS]],
                "num_looked": -(-self.num_rows // self._every),
                "every": self._every,
            },
        }


def _equal_by(*kinds: Hashes) -> tuple[Any, ...]:
    """Equal rows by each kind, the strictest first; then the rows that repeat none.

    The next kind compares only the first of equal rows, so the counts add up.
    """
    remaining = np.arange(len(kinds[0]))
    groups = []
    for hashes in kinds:
        groups.append(_equal(hashes, remaining))
        _, first = np.unique(hashes[remaining], return_index=True)
        remaining = np.sort(remaining[first])
    return (*groups, remaining)


def _equal(all_hashes: Hashes, compared: Positions) -> dict[str, Any]:
    hashes = all_hashes[compared]
    order = np.argsort(hashes, kind="stable")
    differs = np.flatnonzero(np.diff(hashes[order])) + 1
    starts = np.concatenate([[0], differs])
    sizes = np.diff(np.concatenate([starts, [len(hashes)]]))
    several = np.flatnonzero(sizes > 1)
    # Largest first, then by their first row.
    several = several[np.lexsort((order[starts[several]], -sizes[several]))]
    examples = [
        compared[order[starts[i] : starts[i] + min(sizes[i], SHOWN_OF_GROUP)]].tolist()
        for i in several[:SHOWN_GROUPS]
    ]
    return {
        "num_more": int((sizes[several] - 1).sum()),
        "num_groups": len(several),
        "shown": examples,
        "sizes": sizes[several[:SHOWN_GROUPS]].tolist(),
    }


def describe(lengths: NDArray[np.uint32]) -> dict[str, Any] | None:
    """Quantiles, and a histogram without the longest percent."""
    if not len(lengths):
        return None
    middle, ninth, last = np.percentile(lengths, [50, 90, 99], method="lower")
    width = max(1, -(-(int(last) + 1) // NUM_BINS))
    counts = np.bincount(lengths[lengths <= last] // width)
    return {
        "count": len(lengths),
        "min": int(lengths.min()),
        "p50": int(middle),
        "p90": int(ninth),
        "p99": int(last),
        "max": int(lengths.max()),
        "mean": float(lengths.mean()),
        "bin_width": width,
        "bins": counts.tolist(),
        "num_longer": int((lengths > last).sum()),
    }
