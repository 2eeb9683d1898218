"""A rescoring as a job: scored step by step; steps that are done stay."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

from django.db import transaction
from django.db.models import Sum

from dashboard.analysis.rescoring.credit import StepSettings, judge_rules
from dashboard.analysis.rescoring.models import Rescoring
from dashboard.analysis.rescoring.results import summarize
from dashboard.analysis.rescoring.scoring import Refused, rescore_step
from dashboard.analysis.rescoring.services import (
    folder_of,
    purge_rescorings,
    sweep_folders,
)
from dashboard.costs.models import add_judge_use, judge_models
from dashboard.datasets.limits import check_disk_space_to_store
from dashboard.jobs.kinds import (
    Context,
    JobCancelled,
    Kind,
    LeaseLost,
    register,
    register_purge,
)
from dashboard.rewards.trial import sandbox_here
from trainer.rewards.session import open_session
from trainer.rewards.spec import check_rules, needs_sandbox
from trainer.rewards.workers import GroupScorer, ScoringFailed

TURN_SECONDS = 60.0


def rescore(context: Context) -> None:
    """Score the steps that are not scored yet, and sum up those that are.

    A cancelled rescoring is summed up as far as it came.
    """
    rescoring = (
        Rescoring.objects.select_related("run__dataset_version__dataset")
        .filter(pk=context.job.target_id)
        .first()
    )
    if rescoring is None:
        raise JobCancelled  # its run was deleted
    context.note(message="Scoring.")
    try:
        _score(context, rescoring)
    except JobCancelled:
        _conclude(context, rescoring)
        raise
    except (Refused, ScoringFailed) as error:
        raise ValueError(str(error)) from error
    _conclude(context, rescoring)


def _conclude(context: Context, rescoring: Rescoring) -> None:
    result = summarize(rescoring)
    if context.held().exists():
        Rescoring.objects.filter(pk=rescoring.pk).update(result=result)


def _score(context: Context, rescoring: Rescoring) -> None:
    settings = StepSettings(rescoring.run.config, rescoring.spec)
    with _session(rescoring, settings), closing(GroupScorer(1)) as scorer:
        for recipe in settings.recipes():
            check_rules(recipe)
            if needs_sandbox(recipe) and (problem := sandbox_here().problem):
                raise Refused(problem)
        # A judge may take minutes to answer.
        context.on_interrupt = scorer.close
        try:
            _score_steps(context, rescoring, settings, scorer)
        except (ScoringFailed, CancelledError, RuntimeError):
            # The heartbeat has closed the scorer.
            if context.interruption not in (JobCancelled, LeaseLost):
                raise
            raise context.interruption from None


def _score_steps(
    context: Context, rescoring: Rescoring, settings: StepSettings, scorer: GroupScorer
) -> None:
    scored = rescoring.scored
    is_done = set(scored.values_list("step", flat=True))
    num_done = scored.aggregate(sum=Sum("num_completions"))["sum"] or 0
    for step in rescoring.steps:
        if step in is_done:
            continue
        context.progress(num_done)
        check_disk_space_to_store(0, purpose="the rescoring")
        config = settings.at(step)
        scored_step, usage = rescore_step(
            rescoring,
            step,
            config,
            scorer,
            on_scored=lambda count: context.note(context.noted["done"] + count),
        )
        num_done += scored_step.num_completions
        with transaction.atomic():  # stores and counts the step exactly once
            if not context.held().update(done=num_done, num_losses=0):
                raise LeaseLost
            scored_step.save()
            add_judge_use(
                usage,
                models=judge_models(config.reward.recipe),
                team=rescoring.team,
                user=rescoring.created_by,
                source="rescoring",
                target_id=rescoring.pk,
                run=rescoring.run,
            )
    context.note(num_done)


@contextmanager
def _session(rescoring: Rescoring, settings: StepSettings) -> Iterator[None]:
    """Judges' replies are kept until the end, so that none is asked for twice."""
    sweep_folders()
    folder: Path | None = None
    if any(judge_rules(recipe) for recipe in settings.recipes()):
        folder = folder_of(rescoring.pk)
        folder.mkdir(parents=True, exist_ok=True)
    with open_session(folder):
        yield


register(
    Kind(
        name="rescoring",
        run=rescore,
        noun="rescoring",
        turn_seconds=TURN_SECONDS,
        lease=timedelta(seconds=60),
    )
)
register_purge(purge_rescorings)
