"""Keys and values of sampled sequences, for requests that continue them.

Each turn of a conversation begins with all that came before it. Computing that again
can take longer than the turn itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trainer.rollout.cache import States

# Of a machine's memory, for all of its processes. It depends on nothing that changes:
# a run that is resumed prefills what it would have prefilled, and keeps its bits.
_CPU_SHARE = 1 / 8
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


class PrefixStore:
    """Keys and values by their token ids, bounded in bytes; the oldest leave first.

    It is empty whenever the weights change, since other weights give other states.
    """

    def __init__(self, max_bytes: int = 0) -> None:
        """Begin empty; an engine sets `max_bytes` each time before it samples."""
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._states: dict[tuple[int, ...], States] = {}

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, token_ids: tuple[int, ...]) -> bool:
        return token_ids in self._states

    def resize(self, max_bytes: float) -> None:
        """Set the bound, and drop what is beyond it."""
        self.max_bytes = max(0, int(max_bytes))
        self._make_room(0)

    def clear(self) -> None:
        self._states.clear()
        self.num_bytes = 0

    def put(self, token_ids: tuple[int, ...], states: States) -> None:
        """Keep a sequence in place of the oldest; not one larger than the bound."""
        self._drop(token_ids)
        num_bytes = _num_bytes(states)
        if num_bytes <= self.max_bytes:
            self._make_room(num_bytes)
            self._states[token_ids] = states
            self.num_bytes += num_bytes

    def take(self, prompts: Sequence[tuple[int, ...]]) -> list[States]:
        """Return the states of the longest sequence that each prompt continues.

        They leave the store: the batch holds them now, and its ended rows come back
        longer. [] where there is none; a prompt's last token is always left to compute.
        """
        lengths = sorted({len(ids) for ids in self._states}, reverse=True)
        prefixes = [
            next(
                (
                    prompt[:length]
                    for length in lengths
                    if length < len(prompt) and prompt[:length] in self._states
                ),
                (),
            )
            for prompt in prompts
        ]
        taken = [self._states.get(prefix, []) for prefix in prefixes]
        for prefix in prefixes:
            self._drop(prefix)
        return taken

    def _make_room(self, num_bytes: int) -> None:
        while self._states and self.num_bytes + num_bytes > self.max_bytes:
            self._drop(next(iter(self._states)))

    def _drop(self, token_ids: tuple[int, ...]) -> None:
        self.num_bytes -= _num_bytes(self._states.pop(token_ids, []))


def _num_bytes(states: States) -> int:
    return sum(keys.nbytes + values.nbytes for keys, values in states)


def cpu_bytes() -> int:
    """Return the bytes of prefixes that each process may keep in a CPU's memory."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # it is missing, or says "max"
        total = min(total, int(_CONTAINER_LIMIT.read_text()))
    return int(_CPU_SHARE * total) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def cut_prefill(
    num_new: Sequence[int], *, max_tokens: int, spread: int = 2
) -> list[list[int]]:
    """Return places of prompts that go through the model together.

    Each prompt of a part computes as many tokens as the one with the most to compute,
    so their numbers are alike: the largest is at most `spread` times the smallest.

    >>> cut_prefill([90, 4, 90, 5], max_tokens=1_000)
    [[1, 3], [0, 2]]
    """
    parts: list[list[int]] = []
    for place in sorted(range(len(num_new)), key=num_new.__getitem__):
        count = num_new[place]
        if (
            not parts
            or count > spread * num_new[parts[-1][0]]
            or (len(parts[-1]) + 1) * count > max_tokens
        ):
            parts.append([])
        parts[-1].append(place)
    return parts
