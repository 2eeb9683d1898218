"""What is worth knowing of a version's rows, found in one pass over them.

Memory grows by 32 bytes a row, and by 256 for each of the rows that are compared
with one another.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard.datasets.analysis.answer_types import EMPTY, MISSING, answer_type
from dashboard.datasets.analysis.near_duplicates import (
    NUM_HASHES,
    find_groups,
    signature,
)
from dashboard.datasets.row import Prompt, Row

MAX_COMPARED = 100_000
SHOWN_GROUPS = 100
SHOWN_OF_GROUP = 10
NUM_BINS = 40
_BLANK = re.compile(r"\s+")

Hashes = NDArray[np.uint64]
Positions = NDArray[np.int64]


def said(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    return "\n".join(message["content"] for message in prompt)


def prompt_key(prompt: Prompt) -> str:
    """A chat is another prompt than its own text."""
    return f"{'' if isinstance(prompt, str) else 'chat'}\0{prompt}"


def plain(text: str) -> str:
    """A text without what does not change what it says: case, blanks, full width."""
    text = unicodedata.normalize("NFKC", text).casefold()
    return _BLANK.sub(" ", text).strip()


def hash_of(text: str) -> int:
    """64 bits: of a million texts, two that differ agree once in 37 million times."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


class Gatherer:
    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.num_added = 0
        self._prompt_hashes = np.zeros(num_rows, np.uint64)
        self._pair_hashes = np.zeros(num_rows, np.uint64)
        self._plain_hashes = np.zeros(num_rows, np.uint64)
        self._prompt_chars = np.zeros(num_rows, np.uint32)
        self._answer_chars: list[int] = []
        self._types: Counter[str] = Counter()
        # Every so-many-th row is compared, so that they come from the whole version.
        self._every = -(-num_rows // MAX_COMPARED)
        self._compared: list[int] = []
        size = -(-num_rows // self._every)
        self._signatures = np.zeros((size, NUM_HASHES), np.uint32)

    def add(self, row: Row) -> None:
        at, text = self.num_added, said(row.prompt)
        prompt = prompt_key(row.prompt)
        self._prompt_hashes[at] = hash_of(prompt)
        self._pair_hashes[at] = hash_of(f"{prompt}\0{row.answer!r}")
        self._plain_hashes[at] = hash_of(plain(text))
        self._prompt_chars[at] = len(text)
        self._types[answer_type(row.answer)] += 1
        if row.answer is not None:
            self._answer_chars.append(len(row.answer))
        if at % self._every == 0 and (values := signature(text)) is not None:
            self._signatures[len(self._compared)] = values
            self._compared.append(at)
        self.num_added += 1

    def result(self) -> dict[str, Any]:
        assert self.num_added == self.num_rows, "every row is looked at"
        kinds = self._types
        same_row, same_prompt, same_words, left = _equal_by(
            self._pair_hashes, self._prompt_hashes, self._plain_hashes
        )
        return {
            "num_rows": self.num_rows,
            "missing_answers": kinds.pop(MISSING, 0),
            "empty_answers": kinds.pop(EMPTY, 0),
            "answer_types": kinds.most_common(),
            "prompt_chars": describe(self._prompt_chars),
            "answer_chars": describe(np.array(self._answer_chars, np.uint32)),
            "same_row": same_row,
            "same_prompt": same_prompt,
            "same_words": same_words,
            "near": self._near(left),
        }

    def _near(self, first: Positions) -> dict[str, Any]:
        """Of rows that say the same only the first is compared with others."""
        is_first = np.zeros(self.num_rows, bool)
        is_first[first] = True
        compared = np.array(self._compared, np.int64)
        kept = np.flatnonzero(is_first[compared])
        groups = find_groups(self._signatures[kept])
        positions = [[int(compared[kept[i]]) for i in group] for group in groups]
        looked = -(-self.num_rows // self._every)
        return {**_groups(positions), "num_looked": looked, "every": self._every}


def _equal_by(*kinds: Hashes) -> tuple[Any, ...]:
    """Equal rows by each kind, the strictest first; then the rows that repeat none.

    Of rows that are equal by one kind only the first is compared by the next, so that
    no pair is found twice and the numbers add up.
    """
    left = np.arange(len(kinds[0]))
    found = []
    for hashes in kinds:
        found.append(_equal(hashes, left))
        _, first = np.unique(hashes[left], return_index=True)
        left = np.sort(left[first])
    return (*found, left)


def _equal(all_hashes: Hashes, compared: Positions) -> dict[str, Any]:
    hashes = all_hashes[compared]
    order = np.argsort(hashes, kind="stable")
    differs = np.flatnonzero(np.diff(hashes[order])) + 1
    starts = np.concatenate([[0], differs])
    sizes = np.diff(np.concatenate([starts, [len(hashes)]]))
    several = np.flatnonzero(sizes > 1)
    # Largest first, then by their first row.
    several = several[np.lexsort((order[starts[several]], -sizes[several]))]
    shown = [
        compared[order[starts[i] : starts[i] + min(sizes[i], SHOWN_OF_GROUP)]].tolist()
        for i in several[:SHOWN_GROUPS]
    ]
    return {
        "num_more": int((sizes[several] - 1).sum()),
        "num_groups": len(several),
        "shown": shown,
        "sizes": sizes[several[:SHOWN_GROUPS]].tolist(),
    }


def _groups(groups: Sequence[Sequence[int]]) -> dict[str, Any]:
    return {
        "num_more": sum(len(group) - 1 for group in groups),
        "num_groups": len(groups),
        "shown": [list(group[:SHOWN_OF_GROUP]) for group in groups[:SHOWN_GROUPS]],
        "sizes": [len(group) for group in groups[:SHOWN_GROUPS]],
    }


def describe(lengths: NDArray[np.uint32]) -> dict[str, Any] | None:
    """Quantiles, and a histogram that leaves out the longest percent."""
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
