"""Runs that belong together: equal but for their seed, or of one value of a setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from dashboard.insights.differences import Setting, compare_settings
from dashboard.runs.models import Run

MAX_SETS = 10
MAX_SEEDS = 20  # of a set
SEED = "seed"
# What `by` says in the address, when it is not the name of a setting.
SEEDS = "seeds"
NONE = "none"
MAX_NAMED = 2  # settings that a set is called by
MAX_CHARS = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSet:
    """The first run stands for the set: it lends it its number and its colour."""

    label: str
    runs: list[Run]
    places: list[int]  # of its runs among all that were arranged
    num_found: int  # more than `runs` where there are too many
    varied: list[str]  # settings but the seed in which its runs differ

    @property
    def pk(self) -> int:
        return self.runs[0].pk

    @property
    def run(self) -> Run:
        return self.runs[0]

    @property
    def is_single(self) -> bool:
        return len(self.runs) == 1

    @property
    def seeds(self) -> list[int | None]:
        return [run.config.get(SEED) for run in self.runs]


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrangement:
    sets: list[RunSet]
    num_sets: int  # more than `sets` where there are too many
    by: str
    settings: list[Setting]  # of all the runs that were arranged, by place

    @property
    def runs(self) -> list[Run]:
        return [run for one in self.sets for run in one.runs]

    @property
    def choices(self) -> list[str]:
        """The settings that the runs can be grouped by."""
        return [s.key for s in self.settings if s.differs and s.key != SEED]

    @property
    def has_bands(self) -> bool:
        return any(not one.is_single for one in self.sets)

    @property
    def num_runs(self) -> int:
        return sum(len(one.runs) for one in self.sets)


def arrange(runs: Sequence[Run], by: str) -> Arrangement:
    """Sets in the order in which their first runs come; that of the first is the base.

    What `by` names is SEEDS, NONE, or a setting; one in which no two runs differ makes
    one set of all.
    """
    if not runs:
        return Arrangement(sets=[], num_sets=0, by=by, settings=[])
    settings = compare_settings(runs)
    differing = [setting for setting in settings if setting.differs]
    keys = _keys(runs, differing, by)
    members: dict[object, list[int]] = {}
    for place, key in enumerate(keys):
        members.setdefault(key, []).append(place)
    naming = [s for s in differing if s.key != SEED] if by != NONE else []
    if by not in (SEEDS, NONE):
        naming = [setting for setting in differing if setting.key == by]
    kept = list(members.values())[:MAX_SETS]
    return Arrangement(
        sets=[_make(runs, places, naming, differing) for places in kept],
        num_sets=len(members),
        by=by,
        settings=settings,
    )


def _keys(runs: Sequence[Run], differing: list[Setting], by: str) -> list[object]:
    if by == NONE:
        return [run.pk for run in runs]
    if by == SEEDS:
        parts = [setting.values for setting in differing if setting.key != SEED]
        # Of imported runs nobody knows whether they differ in their seed alone.
        return [
            run.pk if run.is_imported else tuple(part[i] for part in parts)
            for i, run in enumerate(runs)
        ]
    named = [setting.values for setting in differing if setting.key == by]
    return list(named[0]) if named else [None] * len(runs)


def _make(
    runs: Sequence[Run],
    places: list[int],
    naming: list[Setting],
    differing: list[Setting],
) -> RunSet:
    kept = places[:MAX_SEEDS]
    first = places[0]
    varied = [
        setting.key
        for setting in differing
        if setting.key != SEED and len({setting.values[i] for i in kept}) > 1
    ]
    told = [s for s in naming if len({s.values[i] for i in places}) == 1]
    is_told = 0 < len(told) <= MAX_NAMED
    names = [runs[place].name for place in places]
    label = ", ".join(_name(s, first) for s in told) if is_told else _joined(names)
    return RunSet(
        label=label,
        runs=[runs[i] for i in kept],
        places=kept,
        num_found=len(places),
        varied=varied,
    )


def _joined(names: list[str]) -> str:
    """What the names begin with, where that is more than a letter.

    >>> _joined(["calm-otter-1", "calm-otter-2"])
    'calm-otter'
    """
    if len(names) == 1:
        return names[0]
    # Of sorted names the first and the last share what all of them do.
    first, last = min(names), max(names)
    shared = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    start = "".join(one for one, _ in shared).rstrip("-_ .#0123456789")
    return start if len(start) > 1 else f"{names[0]} …"


def _name(setting: Setting, place: int) -> str:
    value = setting.values[place]
    short = value if value is not None else "absent"
    if len(short) > MAX_CHARS:
        short = short[: MAX_CHARS - 1] + "…"
    return f"{setting.key} {short}"
