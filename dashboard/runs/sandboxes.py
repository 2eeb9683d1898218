"""Which sandbox a run's reward code ran in, as its trainers told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from dashboard.runs.models import Run
from trainer.rewards.sandbox.levels import NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """From a step on, reward code ran so.

    >>> Confinement(level="A", name="bubblewrap", first_step=1)
    """

    level: str
    name: str
    first_step: int


def confinements_of(run: Run) -> list[Confinement]:
    """One for each change, the first one first; one query.

    Empty before the trainer has begun, and where no rule runs code.
    """
    told = run.events.filter(type__in=("run_started", "run_resumed")).order_by("seq")
    found = list(_read(told.values_list("step", "body__versions__sandbox")))
    changes = [
        later for earlier, later in pairwise(found) if later.level != earlier.level
    ]
    return [*found[:1], *changes]


def _read(told: Iterable[tuple[int, str | None]]) -> Iterator[Confinement]:
    for step, words in told:
        if words:
            level = words.removeprefix("level ")
            name = next((name for known, name in NAMES.items() if known == level), "")
            yield Confinement(level=level, name=name, first_step=step + 1)
