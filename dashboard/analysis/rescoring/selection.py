"""The stored steps that a rescoring scores, and an estimate of its cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from django.db.models import Model, QuerySet, Sum

from dashboard.analysis.rescoring.credit import StepSettings, judge_rules
from dashboard.analysis.rescoring.scoring import Refused, rows_of, samples_of
from dashboard.completions.models import (
    NUM_COMPLETIONS,
    Group,
    GroupCompletions,
    StepRollup,
)
from dashboard.completions.signals.records import GROUP, unpack
from dashboard.rewards.trial import try_groups
from dashboard.runs.models import Run
from trainer.rewards.rule import Sample
from trainer.rewards.spec import Recipe

M = TypeVar("M", bound=Model)
NUM_GROUPS = 2
COMPLETIONS_OF_A_GROUP = 8
MAX_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Selection:
    """Every n-th of the steps with stored groups, starting with the first."""

    first_step: int
    last_step: int
    every: int
    steps: list[int]
    num_steps_found: int
    num_completions: int
    num_found: int


def select_steps(
    run: Run, first_step: int | None, last_step: int | None, every: int
) -> Selection:
    """Two queries, and one for steps that are not rolled up."""
    groups = _within(Group.objects.current().filter(run=run), first_step, last_step)
    if run.completions_deleted_at is not None:
        groups = groups.filter(packed_completions__isnull=False)
    found = sorted(groups.order_by().values_list("step", flat=True).distinct())
    if run.completions_deleted_at is not None:
        sizes = {}  # rollups count those that are deleted too
    else:
        sizes = _rolled_up_sizes(run, first_step, last_step)
    if missing := [step for step in found if step not in sizes]:
        sizes |= _counted_sizes(run, missing)
    steps = found[:: max(1, every)]
    return Selection(
        first_step=first_step if first_step is not None else next(iter(found), 0),
        last_step=last_step if last_step is not None else next(reversed(found), 0),
        every=every,
        steps=steps,
        num_steps_found=len(found),
        num_completions=sum(sizes.get(step, 0) for step in steps),
        num_found=sum(sizes.get(step, 0) for step in found),
    )


def _within(
    found: QuerySet[M], first_step: int | None, last_step: int | None
) -> QuerySet[M]:
    if first_step is not None:
        found = found.filter(step__gte=first_step)
    return found if last_step is None else found.filter(step__lte=last_step)


def _rolled_up_sizes(
    run: Run, first_step: int | None, last_step: int | None
) -> dict[int, int]:
    """Completions by step, from some bytes of each group."""
    rollups = StepRollup.objects.filter(run=run, superseded_by__isnull=True)
    packed = _within(rollups, first_step, last_step).values_list("step", "groups")
    return {
        step: int(unpack(bytes(groups), GROUP)["num_completions"].sum())
        for step, groups in packed
    }


def _counted_sizes(run: Run, steps: Iterable[int]) -> dict[int, int]:
    stored = GroupCompletions.objects.filter(
        group__run=run, group__superseded_by__isnull=True, group__step__in=steps
    )
    by_step = stored.order_by().values_list("group__step")
    return dict(by_step.annotate(count=Sum(NUM_COMPLETIONS)))


# The estimate, from a few completions that are scored now.


@dataclass(slots=True)
class Estimate:
    """`seconds`: scoring without judges; None: unknown."""

    seconds: float | None = None
    num_scored: int = 0
    num_calls: int = 0  # of judges
    judges: list[str] = field(default_factory=list)  # rules that call a judge
    problems: list[str] = field(default_factory=list)


def make_estimate(run: Run, selection: Selection, settings: StepSettings) -> Estimate:
    """Score some completions of the first step, for up to 2 s. Four queries."""
    found = Estimate()
    if not selection.steps:
        return found
    step = selection.steps[0]
    config = settings.at(step)
    recipe = config.reward.recipe
    found.judges = judge_rules(recipe)
    found.num_calls = len(found.judges) * selection.num_completions
    groups = list(
        Group.objects.current()
        .filter(run=run, step=step)
        .order_by("prompt_index")
        .prefetch_related("packed_completions")[:NUM_GROUPS]
    )
    rows = rows_of(run, groups)
    try:
        samples = [
            samples_of(
                run,
                group,
                rows.get(group.prompt_index),
                group.completions[:COMPLETIONS_OF_A_GROUP],
                config,
            )
            for group in groups
        ]
    except (Refused, ValueError) as error:
        found.problems.append(str(error))
        return found
    _time_scoring(found, run, recipe, samples, selection.num_completions)
    return found


def _time_scoring(
    found: Estimate,
    run: Run,
    recipe: Recipe,
    samples: list[list[Sample]],
    num_completions: int,
) -> None:
    tried = try_groups(
        recipe, samples, seconds=MAX_SECONDS, owner=f"team {run.team_id}"
    )
    trials = [trial for group in tried for trial in group if trial.score]
    found.num_scored = len(trials)
    if trials:
        mean = sum(trial.seconds for trial in trials) / len(trials)
        found.seconds = mean * num_completions
    errors: dict[str, str] = {}
    for trial in trials:
        assert trial.score is not None
        for rule in trial.score.failed:
            if rule not in found.judges:  # judges were not called
                errors.setdefault(rule, trial.score.errors[rule])
    found.problems += [f"Rule “{rule}”: {error}" for rule, error in errors.items()]
