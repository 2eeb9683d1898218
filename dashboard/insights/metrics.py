"""The metrics a comparison offers, in groups with the words users look for."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.runs.charts.series import is_bound
from dashboard.runs.models import REWARD, Evaluation, Run

TITLES = {
    "reward": "Reward",
    "group": "Signal within groups",
    "advantage": "Advantage",
    "kl": "Distance to the reference",
    "ratio": "Probability ratio",
    "clip": "Clipping",
    "completion": "Completions",
    "sampling": "Dynamic sampling",
    "mismatch": "Sampling against training",
    "importance": "Correction of sampling",
    "eval": "Held-out prompts",
    "time": "Time",
}
LAST = "Optimization"  # names of one word: loss, grad_norm, lr, entropy …
ORDER = (*TITLES.values(), LAST)


def list_metrics(
    runs: Sequence[Run], *, shown: str = REWARD
) -> list[tuple[str, list[str]]]:
    """Names by group, of all the runs together, and the one shown. One query."""
    names = {name for run in runs for name in run.metric_names} | _evaluated(runs)
    names.add(shown)  # no run may have measured it yet
    groups: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: (name != REWARD, name)):
        groups.setdefault(_title(name), []).append(name)
    return sorted(groups.items(), key=lambda group: _rank(group[0]))


def _evaluated(runs: Sequence[Run]) -> set[str]:
    latest = (
        Evaluation.objects.filter(run__in=runs, superseded_by__isnull=True)
        .order_by("run_id", "name", "-step")
        .distinct("run_id", "name")
    )
    measured = {metric for evaluation in latest for metric in evaluation.metrics}
    return {metric for metric in measured if not is_bound(metric)}


def _title(name: str) -> str:
    part, slash, _ = name.partition("/")
    return TITLES.get(part, part) if slash else LAST


def _rank(title: str) -> tuple[int, str]:
    return (ORDER.index(title) if title in ORDER else len(ORDER), title)
