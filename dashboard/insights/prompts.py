"""One prompt as several runs answered it, each at the step nearest to the wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import F
from django.db.models.functions import Abs

from dashboard.runs.models import Run
from dashboard.samples.models import Completion, Group


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    run: Run
    group: Group | None
    best: Completion | None
    reason: str  # why there is no group


def find_answers(runs: Sequence[Run], prompt: int, step: int | None) -> list[Answered]:
    """Two queries per run with the baseline's dataset version."""
    return [_find(run, runs[0], prompt, step) for run in runs]


def _find(run: Run, baseline: Run, prompt: int, step: int | None) -> Answered:
    if run.dataset_version_id != baseline.dataset_version_id:
        reason = (
            "It has no prompts."
            if run.dataset_version is None
            else f"Its prompts are {run.dataset_version}, the baseline's "
            f"{baseline.dataset_version}: number {prompt} is another prompt there."
        )
        return Answered(run=run, group=None, best=None, reason=reason)
    group = _nearest(run, prompt, run.num_steps if step is None else step)
    if group is None:
        reason = f"Has not sampled prompt {prompt} (yet)."
        return Answered(run=run, group=None, best=None, reason=reason)
    return Answered(run=run, group=group, best=_best(group), reason="")


def _nearest(run: Run, prompt: int, step: int) -> Group | None:
    groups = Group.objects.current().filter(run=run, prompt_index=prompt)
    nearest = groups.order_by(Abs(F("step") - step), "-step")
    return nearest.prefetch_related("packed_completions").first()


def _best(group: Group) -> Completion | None:
    """The first of those with the highest reward."""
    return max(
        group.completions,
        key=lambda each: (each.reward is not None, each.reward or 0.0),
        default=None,
    )
