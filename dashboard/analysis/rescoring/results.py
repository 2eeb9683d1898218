"""Old and new rewards of all completions, and the completions whose rank changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np
from django.core.paginator import Page, Paginator
from numpy.typing import NDArray

from dashboard.analysis.rescoring.credit import (
    COMPLETION,
    GROUP,
    MIXED,
    SCORE,
    SIGNALS,
    Numbers,
    Records,
)
from dashboard.analysis.rescoring.models import Rescoring
from dashboard.completions.signals.records import unpack
from dashboard.runs.charts.chart import clip_all

# Advantages are floats added up in another order than the engine's.
ROUNDING = 1e-9
Bools = NDArray[np.bool_]
PER_PAGE = 50


@dataclass(frozen=True, slots=True)
class Columns:
    """Records of all groups and completions, by step and prompt."""

    groups: Records
    completions: Records


def read_columns(rescoring: Rescoring) -> Columns:
    """Read them in one query; some 50 bytes for each completion."""
    parts = rescoring.scored.order_by("step").values_list("groups", "completions")
    groups, completions = [], []
    for of_groups, of_completions in parts.iterator():
        groups.append(bytes(of_groups))
        completions.append(bytes(of_completions))
    return Columns(
        unpack(b"".join(groups), GROUP), unpack(b"".join(completions), COMPLETION)
    )


@dataclass(slots=True)
class RuleSums:
    """A rule, where it has a score in both, and how often it has one."""

    name: str
    num_old: int = 0
    num_new: int = 0
    num_both: int = 0
    num_changed: int = 0
    old_sum: float = 0.0
    new_sum: float = 0.0
    size_sum: float = 0.0  # of differences, without their signs

    def add(self, old: Numbers, new: Numbers) -> None:
        old, new = clip_all(old), clip_all(new)
        both = ~(np.isnan(old) | np.isnan(new))
        self.num_old += int((~np.isnan(old)).sum())
        self.num_new += int((~np.isnan(new)).sum())
        self.num_both += int(both.sum())
        self.num_changed += int((old[both] != new[both]).sum())
        self.old_sum += float(old[both].sum())
        self.new_sum += float(new[both].sum())
        self.size_sum += float(np.abs(new[both] - old[both]).sum())

    def as_json(self) -> dict[str, Any]:
        count = self.num_both
        means = {
            "old": self.old_sum / count if count else None,
            "new": self.new_sum / count if count else None,
            "size": self.size_sum / count if count else None,
        }
        counts = ("name", "num_old", "num_new", "num_both", "num_changed")
        return {
            name: value for name, value in asdict(self).items() if name in counts
        } | {"means": means}


@dataclass(slots=True)
class _Steps:
    """The parts of the steps that are not columns."""

    rules: dict[str, RuleSums] = field(default_factory=dict)
    num_failures: int = 0
    num_steps: int = 0
    problem: str = ""


def summarize(rescoring: Rescoring) -> dict[str, Any]:
    """{} where nothing was scored. Two queries; a step's rule scores at a time."""
    columns = read_columns(rescoring)
    if not len(columns.completions):
        return {}
    steps = _read_steps(rescoring)
    return {
        "num_steps": steps.num_steps,
        **_of_rewards(columns.completions),
        "num_moved": int(has_moved(columns.completions).sum()),
        "num_pairs": int(columns.groups["num_pairs"].sum(dtype=np.int64)),
        "num_reordered": int(columns.groups["num_reordered"].sum(dtype=np.int64)),
        **_of_advantages(columns.completions),
        **_of_signals(columns.groups),
        "rules": [sums.as_json() for sums in steps.rules.values()],
        "num_failures": steps.num_failures,
        "problem": steps.problem,
    }


def _read_steps(rescoring: Rescoring) -> _Steps:
    steps = _Steps()
    for names, old, new, num_failures, problem in (
        rescoring.scored.order_by("step")
        .values_list("rule_names", "old_scores", "scores", "num_failures", "problem")
        .iterator(chunk_size=20)
    ):
        steps.num_steps += 1
        steps.num_failures += num_failures
        steps.problem = steps.problem or problem
        before = unpack(bytes(old), SCORE).reshape(-1, len(names))
        after = unpack(bytes(new), SCORE).reshape(-1, len(names))
        for index, name in enumerate(names):
            steps.rules.setdefault(name, RuleSums(name)).add(
                before[:, index], after[:, index]
            )
    return steps


def _of_rewards(completions: Records) -> dict[str, Any]:
    old, new = clip_all(completions["old"]), clip_all(completions["new"])
    both = _both(old, new)
    before, after = old[both], new[both]
    difference = np.abs(after - before)
    return {
        "num": len(completions),
        "num_both": int(both.sum()),
        "num_old": int((~np.isnan(old)).sum()),
        "num_new": int((~np.isnan(new)).sum()),
        "num_equal": int((before == after).sum()),
        "mean_old": _mean(before),
        "mean_new": _mean(after),
        "largest": float(difference.max()) if len(difference) else None,
        "pearson": correlation(before, after),
        "spearman": correlation(mean_ranks(before), mean_ranks(after)),
    }


def _of_advantages(completions: Records) -> dict[str, Any]:
    old, new = (
        clip_all(completions[name]) for name in ("old_advantage", "new_advantage")
    )
    both = _both(old, new)
    before, after = old[both], new[both]
    differs = ~is_same_advantage(before, after)
    return {
        "num_advantages": int(both.sum()),
        "num_advantages_changed": int(differs.sum()),
        "num_turned": int(((before * after < 0) & differs).sum()),
    }


def _of_signals(groups: Records) -> dict[str, Any]:
    """`matrix[old][new]` counts groups."""
    old, new = groups["old_signal"].astype(int), groups["new_signal"].astype(int)
    matrix = np.zeros((len(SIGNALS), len(SIGNALS)), int)
    np.add.at(matrix, (old, new), 1)
    return {
        "num_groups": len(groups),
        "matrix": matrix.tolist(),
        "num_mixed_old": int((old == MIXED).sum()),
        "num_mixed_new": int((new == MIXED).sum()),
        "num_gained": int(((old != MIXED) & (new == MIXED)).sum()),
        "num_lost": int(((old == MIXED) & (new != MIXED)).sum()),
    }


def has_moved(completions: Records) -> Bools:
    """Tell whether the rank in the group is another one; False without both rewards."""
    old, new = completions["old_rank"], completions["new_rank"]
    moved: Bools = (old > 0) & (new > 0) & (old != new)
    return moved


def is_same_advantage(old: Numbers, new: Numbers) -> Bools:
    same: Bools = np.abs(new - old) <= ROUNDING * np.maximum(1.0, np.abs(old))
    return same


def correlation(one: Numbers, other: Numbers) -> float | None:
    """Pearson's; None where one of them does not vary.

    >>> correlation(np.array([0.0, 1.0, 2.0]), np.array([0.0, 2.0, 4.0]))
    1.0
    """
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    first, second = one - one.mean(), other - other.mean()
    product = (first * second).sum()
    size = np.sqrt((first**2).sum() * (second**2).sum())
    return float(min(1.0, max(-1.0, product / size)))


def mean_ranks(values: Numbers) -> Numbers:
    """Rank from 1, the lowest first; equals share the mean of theirs.

    >>> mean_ranks(np.array([0.5, 1.0, 0.5])).tolist()
    [1.5, 3.0, 1.5]
    """
    _, indices, counts = np.unique(values, return_inverse=True, return_counts=True)
    means: Numbers = (counts.cumsum() - (counts - 1) / 2)[indices]
    return means


def _both(old: Numbers, new: Numbers) -> Bools:
    is_known: Bools = ~(np.isnan(old) | np.isnan(new))
    return is_known


def _mean(values: Numbers) -> float | None:
    return float(values.mean()) if len(values) else None


# Completions whose rank changed, a page at a time.


@dataclass(frozen=True, slots=True)
class Change:
    """A completion before and after. None: no score, or no advantage."""

    step: int
    prompt: int
    position: int
    group_size: int
    old_rank: int
    new_rank: int
    old: float | None
    new: float | None
    old_advantage: float | None
    new_advantage: float | None

    @classmethod
    def of(cls, record: Records) -> Change:
        return cls(
            **{name: _plain(record[name]) for name in cls.__slots__}  # type: ignore[arg-type]  # of numpy's scalars
        )


def list_changes(completions: Records, *, show: str, sort: str, page: int) -> Page[int]:
    """Places in `completions`; among equals by step, prompt and position."""
    indices = np.arange(len(completions))
    if show == "moved":
        indices = indices[has_moved(completions)]
    sizes = _sizes(completions[indices])
    others = [sizes[name] for name in ("reward", "advantage", "rank") if name != sort]
    # The last key goes first.
    order = np.lexsort([indices, *(-size for size in others), -sizes[sort]])
    return cast(
        "Page[int]", Paginator(indices[order].tolist(), PER_PAGE).get_page(page)
    )


def _sizes(completions: Records) -> dict[str, Numbers]:
    old, new = completions["old_rank"], completions["new_rank"]
    ranks = np.where((old > 0) & (new > 0), np.abs(new.astype(int) - old), 0)
    return {
        "rank": ranks.astype(np.float64),
        "advantage": _size(completions["old_advantage"], completions["new_advantage"]),
        "reward": _size(completions["old"], completions["new"]),
    }


def _size(old: Numbers, new: Numbers) -> Numbers:
    return np.nan_to_num(np.abs(clip_all(new) - clip_all(old)), nan=0.0)


def _plain(value: object) -> float | int | None:
    number = cast("np.generic", value).item()
    return None if isinstance(number, float) and not np.isfinite(number) else number
