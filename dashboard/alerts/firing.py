"""Alert rows: raised and ended by ingest, and corrected when a run is rolled back."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from dashboard.alerts.delivery import add_to_outbox
from dashboard.alerts.evaluator import RunEvaluator, WarningSeen
from dashboard.alerts.history import read_evaluator
from dashboard.alerts.models import (
    OPEN,
    Alert,
    AlertState,
    MutedRun,
    Rule,
)
from dashboard.alerts.models import Event as AlertEvent
from dashboard.alerts.queries import describe, rules_of, signature
from dashboard.alerts.services import notify_pages
from dashboard.completions.models import Group
from dashboard.costs.reports import find_over_budget
from dashboard.project.database import clean_json
from dashboard.runs.models import Run, RunState
from dashboard.runs.progress import SILENT_SECONDS, describe_progress, silent_seconds
from dashboard.runs.state import transition
from trainer.alerts.conditions import Kind, finite
from trainer.alerts.evaluator import Recovered, Triggered
from trainer.events import Evaluated, Event, PhaseStarted, StepFinished, Warned

NUM_GROUPS = 3
NO_STEP = "no_step"
OVER_BUDGET = "over_budget"
# Of the trainer's warnings by code.
TITLES = {
    "changes": "Unreadable settings change",
    "checkpoint_damaged": "Damaged checkpoint",
    "drops_thinking": "Chat template drops thinking",
    "engine_fallback": "Slower fallback engine",
    "judge": "Judge returns no scores",
    "kl_not_measured": "KL no longer measured",
    NO_STEP: "Trainer stands still",
    "out_of_memory": "Out of memory",
    OVER_BUDGET: "Over budget",
    "rolled_back": "Rolled back to a checkpoint",
    "rule_unscored": "Rule without a score",
    "update_skipped": "Skipped update",
}
RULES_SECONDS = 5.0  # until a changed rule applies
MAX_CACHED = 8  # of one process; the default worker may hold several runs in turn
OBSERVED = (StepFinished, Evaluated, Warned, PhaseStarted)


def raise_alert(
    run_id: int, triggered: Triggered[int], *, readings: dict[str, list[list[Any]]]
) -> Alert | None:
    """Raise an alert; None if the rule was switched off or deleted in the meantime.

    The caller holds the run's row lock, so no other process raises alerts for this run.
    """
    rule_id, code = triggered.key
    # Held, so that it cannot be deleted under the alert that names it.
    rule = (
        Rule.objects.select_for_update(no_key=True)
        .filter(pk=rule_id, is_enabled=True)
        .first()
    )
    if rule is None:
        return None
    muted = MutedRun.objects.filter(run_id=run_id, until__gt=Now())
    condition = rule.condition
    name, why = rule.name, rule.why
    if isinstance(triggered, WarningSeen):
        # Another trainer's may have any code.
        name = TITLES.get(code) or f"Trainer warning: {code}"
        why = triggered.message
    alert = Alert.objects.create(
        run_id=run_id,
        rule=rule,
        code=code,
        metric=triggered.metric,
        step=triggered.step,
        value=finite(triggered.value),
        bound=finite(triggered.bound),
        read_as=clean_json(
            {
                "name": name,
                "text": describe(rule),
                "why": why,
                "kind": condition.kind.value,
                "threshold": condition.threshold,
                "for_steps": condition.for_steps,
                "back": condition.lookback,
            }
        ),
        is_muted=rule.is_muted or muted.exists(),
        readings=readings,
        groups=_example_groups(run_id, triggered.step),
    )
    if rule.is_sent and not alert.is_muted:
        add_to_outbox(rule.team_id, AlertEvent.ALERT_FIRED, alert=alert)
    return alert


@transaction.atomic
def alert_of_silence() -> None:
    """Raise an alert for each trainer that stands still, and end those of others."""
    suspects = Run.objects.filter(
        source={},
        state=RunState.RUNNING,
        active_at__lt=Now() - timedelta(seconds=SILENT_SECONDS),
    ).select_for_update(of=("self",))
    silent = {run.pk: run for run in suspects if silent_seconds(run)}
    alerts = Alert.objects.filter(code=NO_STEP, state__in=OPEN, run__source={})
    over = list(alerts.exclude(run__in=silent).select_related("run"))
    new = silent.keys() - set(alerts.values_list("run_id", flat=True))
    warned = {
        run: [r for r in rules_of(silent[run]) if r.condition.kind is Kind.WARNED]
        for run in new
    }
    alerted = [run for run, rules in warned.items() if rules]
    notify_pages([*alerted, *(alert.run_id for alert in over)])
    for alert in over:
        resolve(alert, step=alert.run.last_step)
    for run in map(silent.__getitem__, alerted):
        for rule in warned[run.pk]:
            raise_alert(
                run.pk,
                WarningSeen(
                    key=(rule.pk, NO_STEP),
                    metric="",
                    step=run.last_step,
                    value=None,
                    bound=None,
                    message=describe_progress(run).notice,
                ),
                readings={},
            )


@transaction.atomic
def alert_of_budgets() -> None:
    """Raise an alert for each run at work that has passed its budget, once."""
    over = find_over_budget()
    known = Alert.objects.filter(code=OVER_BUDGET, run__in=over)
    new = over.keys() - {alert.run for alert in known.select_related("run")}
    locked = Run.objects.select_for_update(of=("self",), no_key=True)
    for run in locked.filter(pk__in=[run.pk for run in new]).order_by("pk"):
        rules = [r for r in rules_of(run) if r.condition.kind is Kind.WARNED]
        if rules:
            notify_pages([run.pk])
        for rule in rules:
            raise_alert(
                run.pk,
                WarningSeen(
                    key=(rule.pk, OVER_BUDGET),
                    metric="",
                    step=run.last_step,
                    value=None,
                    bound=run.config["logging"]["budget_cost"],
                    message=over[run],
                ),
                readings={},
            )


def _example_groups(run_id: int, step: int) -> list[list[int]]:
    """Choose groups of the last step with groups: the lowest, the middle and the
    highest reward.
    """
    current = Group.objects.current().filter(run_id=run_id, step__lte=step)
    last = current.order_by("-step").values_list("step", flat=True).first()
    if last is None:
        return []
    prompts = list(
        current.filter(step=last)
        .order_by("reward_mean", "prompt_index")
        .values_list("prompt_index", flat=True)
    )
    if len(prompts) > NUM_GROUPS:
        prompts = [prompts[0], prompts[len(prompts) // 2], prompts[-1]]
    return [[last, prompt] for prompt in prompts]


def resolve(alert: Alert, *, step: int) -> bool:
    """Close an alert whose condition no longer holds; False if it was already
    closed.
    """
    return bool(
        Alert.objects.filter(pk=alert.pk, state__in=OPEN).update(
            state=AlertState.RESOLVED, ended_at=Now(), ended_step=step
        )
    )


def has_paused_before(run_id: int, triggered: Triggered[int]) -> bool:
    """Return whether this alert paused the run before its steps were superseded.

    The run was resumed since, so it is not paused for the same alert again.
    """
    return Alert.objects.filter(
        run_id=run_id,
        rule=triggered.key[0],
        code=triggered.key[1],
        step__gte=triggered.step,
        state=AlertState.SUPERSEDED,
        has_paused=True,
    ).exists()


def supersede(run_id: int, *, after: int) -> bool:
    """Go back to the step of a resume. Returns whether any alert changes by that.

    Called in the transaction that cuts the run's history.
    """
    num_later = (
        Alert.objects.filter(run_id=run_id, step__gt=after)
        .exclude(state=AlertState.SUPERSEDED)
        .update(state=AlertState.SUPERSEDED, ended_at=Now(), ended_step=None)
    )
    earlier = Alert.objects.filter(run_id=run_id, step__lte=after)
    # It was open at that step, and its end is not known yet.
    ended_later = Q(state=AlertState.RESOLVED, ended_step__gt=after)
    opened = earlier.filter(ended_later, acknowledged_at__isnull=True).update(
        state=AlertState.FIRING, ended_at=None, ended_step=None
    )
    opened += earlier.filter(ended_later).update(
        state=AlertState.ACKNOWLEDGED, ended_at=None, ended_step=None
    )
    for alert in earlier.exclude(state=AlertState.SUPERSEDED).order_by("-id")[:50]:
        remaining = {
            metric: [reading for reading in readings if reading[0] <= after]
            for metric, readings in alert.readings.items()
        }
        if remaining != alert.readings:
            Alert.objects.filter(pk=alert.pk).update(readings=remaining)
    return bool(num_later or opened)


# Observing events, in ingest's transaction.


@dataclass
class CachedEvaluator:
    """An evaluator and the last log position that it has seen."""

    evaluator: RunEvaluator
    attempt: int
    line: int
    signature: tuple[object, ...]
    checked_at: float


@dataclass
class Outcome:
    """The work that ingest still has to do: notify the pages, pause the run."""

    has_changed: bool = False
    pausing: list[Alert] = field(default_factory=list)


_cached: OrderedDict[int, CachedEvaluator] = OrderedDict()


def observe(
    run_id: int, events: Sequence[Event], *, first_seq: int, known: Sequence[str]
) -> Outcome:
    """Consecutive stored events of one log; `known` metrics occurred before.

    One query every 5 s while nothing fires. An evaluator that has not seen exactly the
    previous lines is discarded: its transaction was rolled back.
    """
    outcome = Outcome()
    cached = _pop_evaluator(run_id, events, first_seq=first_seq, known=known)
    if cached is None:
        return outcome
    for event in events:
        for change in cached.evaluator.observe(event):
            _act(run_id, cached.evaluator, change, outcome)
    for collecting in cached.evaluator.collecting:
        if collecting.is_changed:
            alert = collecting.alert
            Alert.objects.filter(pk=alert.pk).update(readings=alert.readings)
            collecting.is_changed = False
    cached.evaluator.collecting = [
        collecting
        for collecting in cached.evaluator.collecting
        if not collecting.is_done
    ]
    cached.attempt, cached.line = events[-1].attempt, events[-1].line
    _cached[run_id] = cached
    while len(_cached) > MAX_CACHED:
        _cached.popitem(last=False)
    return outcome


def _pop_evaluator(
    run_id: int, events: Sequence[Event], *, first_seq: int, known: Sequence[str]
) -> CachedEvaluator | None:
    """Take the evaluator; None if no event matters. It returns to the cache only after
    it has seen the events, so one that an error interrupts is not used again.
    """
    cached = _cached.pop(run_id, None)
    position = (events[0].attempt, events[0].line)
    if cached is not None and (cached.attempt, cached.line + 1) != position:
        cached = None
    if not any(isinstance(event, OBSERVED) for event in events):
        return cached
    if cached is not None:
        if time.monotonic() - cached.checked_at < RULES_SECONDS:
            return cached
        cached.checked_at = time.monotonic()
        run = Run.objects.only("id", "name", "team_id").get(pk=run_id)
        if signature(rules_of(run)) == cached.signature:
            return cached
    run = Run.objects.get(pk=run_id)
    evaluator = read_evaluator(run, before=first_seq, known=set(known))
    return CachedEvaluator(
        evaluator=evaluator,
        attempt=0,
        line=0,
        signature=signature(evaluator.rows.values()),
        checked_at=time.monotonic(),
    )


def _act(
    run_id: int,
    evaluator: RunEvaluator,
    change: Triggered[int] | Recovered[int],
    outcome: Outcome,
) -> None:
    if isinstance(change, Recovered):
        outcome.has_changed |= resolve(
            evaluator.alerts.pop(change.key), step=change.step
        )
        return
    alert = raise_alert(run_id, change, readings=evaluator.readings_of(change))
    if alert is None:
        evaluator.closed(change.key)
        return
    evaluator.raised(change.key, alert)
    outcome.has_changed = True
    rule = alert.rule
    assert rule is not None, "it was raised for one"
    if rule.pauses_run and not alert.is_muted and not has_paused_before(run_id, change):
        outcome.pausing.append(alert)


def pause_for(alert: Alert, *, when: Q) -> bool:
    """Request a pause, as a user would; False if the run is not running or is external.

    An open alert raises no second one, so a resumed run continues until the condition
    clears and returns.
    """
    name = alert.read_as["name"]
    is_pausing = transition(
        alert.run_id,
        sources=[RunState.STARTING, RunState.RUNNING],
        target=RunState.PAUSING,
        when=when & Q(source={}),
        verb="run.pause_requested",
        detail={"alert": alert.pk},
        pause_reason=f"The alert “{name}” paused the run at step {alert.step}: "
        f"{alert.read_as['text']}.",
    )
    if is_pausing:
        Alert.objects.filter(pk=alert.pk).update(has_paused=True)
    return is_pausing
