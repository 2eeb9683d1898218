from __future__ import annotations

from dataclasses import dataclass

from django.db.models import F
from django.http import Http404

from dashboard.runs.models import Run
from dashboard.samples.models import Group

MAX_VISITS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Visits:
    """The steps at which a run sampled one prompt, oldest first."""

    groups: list[Group]
    is_cut: bool
    previous: Group | None
    next: Group | None


def get_group(run: Run, step: int, prompt_index: int) -> Group:
    """The group at this address, or 404.

    A shared link outlives a resume that went back before its step: until the run
    gets there again, the superseded group is found.
    """
    found = Group.objects.filter(run=run, step=step, prompt_index=prompt_index)
    newest = F("superseded_by").desc(nulls_first=True)
    group = found.order_by(newest, "-epoch").first()
    if group is None:
        raise Http404(f"Run {run.pk} has no group of prompt {prompt_index} at {step}.")
    return group


def read_visits(group: Group) -> Visits:
    same = Group.objects.current().filter(
        run_id=group.run_id, prompt_index=group.prompt_index
    )
    names = ("step", "prompt_index", "signal", "reward_mean", "reward_std")
    before = list(
        same.filter(step__lt=group.step)
        .order_by("-step")
        .only(*names)[: MAX_VISITS + 1]
    )
    after = list(
        same.filter(step__gt=group.step).order_by("step").only(*names)[: MAX_VISITS + 1]
    )
    kept = [*reversed(before[:MAX_VISITS]), group, *after[:MAX_VISITS]]
    return Visits(
        groups=kept,
        is_cut=len(before) > MAX_VISITS or len(after) > MAX_VISITS,
        previous=before[0] if before else None,
        next=after[0] if after else None,
    )


def neighbours_in_step(group: Group) -> tuple[int | None, int | None]:
    """Prompt numbers of the groups before and after this one in its step."""
    same = Group.objects.current().filter(run_id=group.run_id, step=group.step)
    before = same.filter(prompt_index__lt=group.prompt_index).order_by("-prompt_index")
    after = same.filter(prompt_index__gt=group.prompt_index).order_by("prompt_index")
    return (
        before.values_list("prompt_index", flat=True).first(),
        after.values_list("prompt_index", flat=True).first(),
    )
