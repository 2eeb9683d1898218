"""Rebuilds a run's evaluator from the stored rows."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from operator import itemgetter

from django.db.models import QuerySet

from dashboard.alerts.evaluator import AROUND, Key, RunEvaluator
from dashboard.alerts.models import OPEN, Alert, AlertState
from dashboard.alerts.queries import left_out, rules_of
from dashboard.runs.models import REWARD, Evaluation, Run, RunEvent, Step
from trainer.alerts.conditions import EVALUATIONS, FIRST, Kind, is_evaluated
from trainer.alerts.evaluator import REWARDS


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A step or an evaluation of the stored history."""

    seq: int
    step: int
    metrics: dict[str, float | None]
    rewards: list[float] | None = None  # of an evaluation: of the steps before it


# The steps of the alerts of one finding, from and to, with the bound that each kept.
Spans = list[tuple[int, float, float | None]]


def read_evaluator(run: Run, *, before: int, known: set[str]) -> RunEvaluator:
    """Read the evaluator of all with a stream number below `before`; about eight
    queries.
    """
    evaluator = RunEvaluator(rules_of(run), left_out(run))
    alerts = [
        ((a.rule_id or 0, a.code), a)
        for a in Alert.objects.filter(
            run=run, rule__in=evaluator.rules, state__in=(*OPEN, AlertState.RESOLVED)
        ).order_by("id")
    ]
    opened = {key: alert for key, alert in alerts if alert.state in OPEN}
    spans: dict[Key, Spans] = {}
    for key, alert in alerts:
        spans.setdefault(key, []).append(
            (alert.step, alert.ended_step or math.inf, alert.bound)
        )
    for key, alert in alerts:
        if key in opened and alert is opened[key]:
            evaluator.raised(key, alert)
        else:
            evaluator.collect(alert)
    _replay(evaluator, run, before, spans)
    evaluator.known = set(known)
    for key, track in evaluator.tracks.items():
        track.hold(opened[key].bound if key in opened else None)
    return evaluator


def _replay(
    evaluator: RunEvaluator, run: Run, before: int, spans: dict[Key, Spans]
) -> None:
    """Replays stored history without raising alerts again."""
    last = [
        Moment(seq=row.seq, step=row.step, metrics=run.name_values(row.values))
        for row in _steps(run, before).order_by("-step")[: evaluator.reach + AROUND + 1]
    ]
    # The first step of the current phase; 0 without phases. A run that was rolled
    # back may have started a later phase before.
    body = (
        RunEvent.objects.filter(
            run=run,
            type="phase_started",
            seq__lt=before,
            step__lte=(last[0].step if last else 0) + 1,
        )
        .order_by("-seq")
        .values_list("body", flat=True)
        .first()
    )
    begin = body["first_step"] if body else 0
    # The last steps and evaluations, in the order in which they were logged.
    # Running medians restart with a phase.
    steps = [moment for moment in last if moment.step >= begin]
    # Else these are all steps of the phase.
    has_earlier = len(steps) > evaluator.reach
    rare = _rarely_measured(evaluator, run, begin, steps) if has_earlier else []
    evaluations = _evaluations(run, evaluator, before)
    moments = sorted([*rare, *steps, *evaluations], key=lambda moment: moment.seq)
    _remember_first(evaluator, run, begin, moments)
    for moment in moments:
        for key, track in evaluator.tracks.items():
            bounds = (
                bound
                for start, end, bound in spans.get(key, ())
                if start < moment.step <= end
            )
            track.hold(next(bounds, None))
        if moment.rewards is not None:
            evaluator.remember_rewards(moment.rewards)
            evaluator.read_evaluation(moment.step, moment.metrics)
        else:
            evaluator.read_step(
                moment.step, moment.metrics, without=evaluator.left_out(moment.step)
            )
        for key, alert in evaluator.alerts.items():
            if moment.step <= alert.step and key in evaluator.tracks:
                evaluator.tracks[key].num_clear = 0
    # The rewards before the next evaluation may belong to the previous phase.
    rewards = (moment.metrics.get(REWARD) for moment in reversed(last))
    evaluator.remember_rewards(value for value in rewards if value is not None)


def _remember_first(
    evaluator: RunEvaluator, run: Run, begin: int, moments: list[Moment]
) -> None:
    """Remember the first readings, as far as they come before what is read again."""
    for key, metric in evaluator.metrics.items():
        track = evaluator.tracks[key]
        if track.condition.kind not in (Kind.SHARE_OF_FIRST, Kind.TIMES_FIRST):
            continue
        is_evaluation = is_evaluated(metric)
        seqs = (
            m.seq
            for m in moments
            if (m.rewards is not None) == is_evaluation
            and (is_evaluation or m.metrics.get(metric) is not None)
        )
        before = min(seqs, default=0)
        if is_evaluation:
            current = Evaluation.objects.filter(
                run=run,
                superseded_by__isnull=True,
                seq__lt=before,
                metrics__has_key=metric,
            )
            values = (e.metrics[metric] for e in current.order_by("seq")[: 4 * FIRST])
            track.remember_first([value for value in values if value is not None])
        elif column := run.find_column(metric):
            measured = (
                _steps(run, before)
                .filter(step__gte=begin)
                .order_by("step")
                .filter(**{f"{column}__isnull": False})
            )
            track.remember_first(measured.values_list(column, flat=True)[:FIRST])


def _rarely_measured(
    evaluator: RunEvaluator, run: Run, begin: int, steps: list[Moment]
) -> list[Moment]:
    """Earlier steps with a metric that too few of the last ones have."""
    first = min((moment.seq for moment in steps), default=0)
    moments = []
    for metric, reach in evaluator.reaches().items():
        num_known = sum(m.metrics.get(metric) is not None for m in steps)
        column = run.find_column(metric)
        if column is None or num_known >= reach:
            continue
        newest = (
            _steps(run, first)
            .filter(step__gte=begin, **{f"{column}__isnull": False})
            .order_by("-step")
            .values_list("seq", "step", column)
        )
        moments += [
            Moment(seq=seq, step=step, metrics={metric: value})
            for seq, step, value in newest[: reach - num_known]
        ]
    return moments


def _steps(run: Run, before: int) -> QuerySet[Step]:
    return Step.objects.filter(run=run, superseded_by__isnull=True, seq__lt=before)


def _evaluations(run: Run, evaluator: RunEvaluator, before: int) -> list[Moment]:
    most = (run.evaluation_sets.count() + 1) * (EVALUATIONS + evaluator.reach)
    rows = list(
        Evaluation.objects.filter(
            run=run, superseded_by__isnull=True, seq__lt=before
        ).order_by("-seq")[:most]
    )
    # (stream number, mean reward) of the steps before evaluations.
    rewards: list[tuple[int, float]] = []
    if rows and (column := run.find_column(REWARD)):
        pairs = (
            _steps(run, before)
            .filter(step__gt=rows[-1].step - 2 * REWARDS)
            .order_by("seq")
            .values_list("seq", column)
        )
        rewards = [(seq, value) for seq, value in pairs if value is not None]
    moments = []
    for e in rows:
        index = bisect_left(rewards, e.seq, key=itemgetter(0))
        last = [value for _, value in rewards[max(0, index - REWARDS) : index]]
        moments.append(Moment(seq=e.seq, step=e.step, metrics=e.metrics, rewards=last))
    return moments
