"""Completions that end one by one, until their groups are complete."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.rollout.engine import OnGroup, Request
from trainer.types import Completion


class Collected:
    """The completions of some requests that have ended so far."""

    def __init__(self, requests: Sequence[Request], on_group: OnGroup) -> None:
        self.found: dict[tuple[int, int], Completion] = {}  # by request and place there
        self._missing = [len(request.seeds) for request in requests]
        self._sizes = tuple(self._missing)
        self._on_group = on_group

    @property
    def is_complete(self) -> bool:
        return not any(self._missing)

    def add(self, owner: tuple[int, int], completion: Completion) -> None:
        """Take in one; with the last of its request, tell of the group."""
        place, _ = owner
        self.found[owner] = completion
        self._missing[place] -= 1
        if self._missing[place] == 0:
            self._on_group(place, self._group(place))

    def add_all(self, ended: Sequence[tuple[tuple[int, int], Completion]]) -> None:
        for owner, completion in ended:
            self.add(owner, completion)

    def groups(self) -> list[tuple[Completion, ...]]:
        """All of them, in the order of the requests."""
        return [self._group(place) for place in range(len(self._sizes))]

    def _group(self, place: int) -> tuple[Completion, ...]:
        return tuple(self.found[place, k] for k in range(self._sizes[place]))
