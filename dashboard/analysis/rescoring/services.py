"""Rescorings: their steps, an estimate of their cost, their start and end."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet, Sum
from django.shortcuts import get_object_or_404

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.analysis.rescoring.credit import StepSettings, check_recipe, judge_rules
from dashboard.analysis.rescoring.models import Rescoring
from dashboard.analysis.rescoring.scoring import Refused, rows_of, samples_of
from dashboard.completions.models import (
    NUM_COMPLETIONS,
    Group,
    GroupCompletions,
    StepRollup,
)
from dashboard.completions.signals.records import GROUP, unpack
from dashboard.datasets.trash import lock_untrashed
from dashboard.jobs.kinds import delete_folders, delete_old
from dashboard.jobs.models import OPEN
from dashboard.jobs.queue import check_open, enqueue
from dashboard.project.errors import UserError
from dashboard.rewards.models import RecipeVersion
from dashboard.rewards.trial import try_groups
from dashboard.runs.charts.series import filter_steps
from dashboard.runs.models import Run
from trainer.rewards.rule import Sample
from trainer.rewards.spec import Recipe

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
    groups = filter_steps(
        Group.objects.current().filter(run=run), first_step, last_step
    )
    if run.completions_deleted_at is not None:
        groups = groups.filter(packed_completions__isnull=False)
    stored_steps = sorted(groups.order_by().values_list("step", flat=True).distinct())
    if run.completions_deleted_at is not None:
        sizes = {}  # rollups count those that are deleted too
    else:
        sizes = _rolled_up_sizes(run, first_step, last_step)
    if missing := [step for step in stored_steps if step not in sizes]:
        sizes |= dict(
            GroupCompletions.objects.filter(
                group__run=run,
                group__superseded_by__isnull=True,
                group__step__in=missing,
            )
            .order_by()
            .values_list("group__step")
            .annotate(count=Sum(NUM_COMPLETIONS))
        )
    steps = stored_steps[:: max(1, every)]
    return Selection(
        first_step=first_step
        if first_step is not None
        else next(iter(stored_steps), 0),
        last_step=last_step
        if last_step is not None
        else next(reversed(stored_steps), 0),
        every=every,
        steps=steps,
        num_steps_found=len(stored_steps),
        num_completions=sum(sizes.get(step, 0) for step in steps),
        num_found=sum(sizes.get(step, 0) for step in stored_steps),
    )


def _rolled_up_sizes(
    run: Run, first_step: int | None, last_step: int | None
) -> dict[int, int]:
    """Completions by step, from some bytes of each group."""
    return {
        step: int(unpack(bytes(groups), GROUP)["num_completions"].sum())
        for step, groups in filter_steps(
            StepRollup.objects.filter(run=run, superseded_by__isnull=True),
            first_step,
            last_step,
        ).values_list("step", "groups")
    }


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
    estimate = Estimate()
    if not selection.steps:
        return estimate
    step = selection.steps[0]
    config = settings.at(step)
    recipe = config.reward.recipe
    estimate.judges = judge_rules(recipe)
    estimate.num_calls = len(estimate.judges) * selection.num_completions
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
        estimate.problems.append(str(error))
        return estimate
    _time_scoring(estimate, run, recipe, samples, selection.num_completions)
    return estimate


def _time_scoring(
    estimate: Estimate,
    run: Run,
    recipe: Recipe,
    samples: list[list[Sample]],
    num_completions: int,
) -> None:
    tried = try_groups(
        recipe, samples, seconds=MAX_SECONDS, owner=f"team {run.team_id}"
    )
    trials = [trial for group in tried for trial in group if trial.score]
    estimate.num_scored = len(trials)
    if trials:
        mean = sum(trial.seconds for trial in trials) / len(trials)
        estimate.seconds = mean * num_completions
    errors: dict[str, str] = {}
    for trial in trials:
        assert trial.score is not None
        for rule in trial.score.failed:
            if rule not in estimate.judges:  # judges were not called
                errors.setdefault(rule, trial.score.errors[rule])
    estimate.problems += [f"Rule “{rule}”: {error}" for rule, error in errors.items()]


MAX_OPEN = 4  # of a team, waiting or running
MAX_COMPLETIONS = 200_000
KEPT = timedelta(days=30)  # after its end
MOST_KEPT = 100  # of a team
RELATED = (
    "run__dataset_version",
    "recipe_version__recipe",
    "created_by",
    "team",
    "job",
)
MAX_FAILURES = 20


@transaction.atomic
def start_rescoring(
    *,
    team: Team,
    user: User | None,
    run: Run,
    selection: Selection,
    recipe: Recipe | None,
    recipe_version: RecipeVersion | None = None,
    allows_judges: bool = False,
) -> Rescoring:
    """Queue a rescoring of these steps; recipe None: the recipe of each step.

    Args:
        allows_judges: whether judges may be called, which costs money.

    Raises:
        UserError: the rescoring is too large, or impossible.
    """
    assert run.team_id == team.id, "another team's run"
    assert recipe_version is None or recipe_version.recipe.team_id == team.id
    spec = None if recipe is None else recipe.model_dump(mode="json")
    check_start(
        run, selection, StepSettings(run.config, spec), allows_judges=allows_judges
    )
    assert run.dataset_version, "StepSettings refuses imported runs"
    lock_untrashed(run.dataset_version)
    check_open(
        team,
        Rescoring.objects.all(),
        most=MAX_OPEN,
        nouns="rescorings",
        code="rescoring.too_many_open",
    )
    rescoring = Rescoring.objects.create(
        team=team,
        created_by=user,
        run=run,
        recipe_version=recipe_version,
        spec=spec,
        first_step=selection.first_step,
        last_step=selection.last_step,
        every=selection.every,
        steps=selection.steps,
        num_steps_found=selection.num_steps_found,
        num_completions=selection.num_completions,
        num_found=selection.num_found,
    )
    rescoring.job = enqueue(
        "rescoring",
        rescoring.pk,
        team_id=team.pk,
        user=user,
        total=rescoring.num_completions,
        unit="completions",
    )
    rescoring.save(update_fields=["job"])
    record(team=team, actor=user, verb="rescoring.started", obj=rescoring)
    return rescoring


def check_start(
    run: Run, selection: Selection, settings: StepSettings, *, allows_judges: bool
) -> None:
    """UserError if the rescoring cannot start."""
    if not selection.steps:
        raise UserError(
            "rescoring.no_groups",
            f"{run} has no stored groups from step {selection.first_step:,} to "
            f"{selection.last_step:,}. Choose other steps.",
        )
    if selection.num_completions > MAX_COMPLETIONS:
        least = -(-selection.num_completions // MAX_COMPLETIONS) * selection.every
        raise UserError(
            "rescoring.too_many_completions",
            f"A rescoring scores at most {MAX_COMPLETIONS:,} completions; these "
            f"steps have {selection.num_completions:,}. Choose fewer steps, or a "
            f"step interval of {least}.",
        )
    assert run.dataset_version, "StepSettings refuses imported runs"
    if run.dataset_version.dataset.trashed_at is not None:
        raise UserError(
            "rescoring.dataset_trashed",
            f"{run.dataset_version} is in the trash, and the rules need its "
            "columns. Restore the dataset first.",
        )
    for recipe in settings.recipes():
        check_recipe(recipe)
        if judge_rules(recipe) and not allows_judges:
            raise UserError(
                "rescoring.judge_not_confirmed",
                f"The reward calls a judge ({', '.join(judge_rules(recipe))}), "
                "which costs money. Confirm the judge requests.",
            )


@transaction.atomic
def delete_rescoring(*, rescoring: Rescoring, user: User | None) -> None:
    """Permanent. UserError if it has not ended."""
    for locked in (
        Rescoring.objects.select_for_update(of=("self",))
        .select_related("job")
        .filter(pk=rescoring.pk)
    ):
        if locked.is_open:
            raise UserError(
                "rescoring.not_ended", f"{locked} is {locked.state}. Stop it first."
            )
        record(locked.team, user, "rescoring.deleted", locked)
        locked.delete()


# Purging.


def purge_rescorings() -> int:
    """Delete them with results and judges' replies; return how many."""
    num_old = delete_old(Rescoring.objects.all(), keep=KEPT, most=MOST_KEPT)
    sweep_folders()
    return num_old


def folder_of(rescoring_id: int) -> Path:
    return rescorings_folder() / str(rescoring_id)


def sweep_folders() -> None:
    """Delete the judge replies of ended rescorings from this machine."""
    delete_folders(rescorings_folder(), Rescoring.objects.filter(job__state__in=OPEN))


def rescorings_folder() -> Path:
    return Path(settings.COHORT_DATA) / "rescorings"


# Lookups. Another team's rescorings are not found.


@dataclass(frozen=True, slots=True)
class Failure:
    step: int
    prompt: int
    position: int
    rule: str
    error: str


def get_rescoring(team: Team, rescoring_id: int) -> Rescoring:
    return get_object_or_404(team.rescorings.select_related(*RELATED), pk=rescoring_id)


def list_rescorings(team: Team, run: Run | None) -> QuerySet[Rescoring]:
    rescorings = team.rescorings.select_related(*RELATED).order_by("-pk")
    return rescorings if run is None else rescorings.filter(run=run)


def list_failures(rescoring: Rescoring) -> list[Failure]:
    """List the first of those that are kept; one query."""
    failed: list[Failure] = []
    kept = (
        rescoring.scored.filter(num_failures__gt=0)
        .order_by("step")
        .values_list("step", "failures")
        .iterator(chunk_size=MAX_FAILURES)
    )
    for step, failures in kept:
        failed += [Failure(step=step, **failure) for failure in failures]
        if len(failed) >= MAX_FAILURES:
            break
    return failed[:MAX_FAILURES]
