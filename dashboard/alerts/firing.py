"""Alerts as rows: raised, ended, and kept true when a run's history goes back."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from django.db.models.functions import Now

from dashboard.alerts.evaluator import WarningSeen
from dashboard.alerts.models import (
    OPEN,
    Alert,
    AlertState,
    Event,
    MutedRun,
    Rule,
)
from dashboard.alerts.outbox import put_out
from dashboard.alerts.rules import describe
from dashboard.project.database import clean_json
from dashboard.samples.models import Group
from trainer.alert_conditions import finite
from trainer.alert_evaluator import Triggered

NUM_GROUPS = 3
# Of the trainer's warnings by code.
TITLES = {
    "changes": "Changed settings cannot be read",
    "checkpoint_damaged": "A checkpoint is damaged",
    "engine_fallback": "The model runs in a slower way",
    "judge": "A judge gives no scores",
    "kl_not_measured": "KL is no longer measured",
    "out_of_memory": "Memory ran out",
    "rolled_back": "The run went back to a checkpoint",
    "update_skipped": "An update was skipped",
}


def raise_alert(
    run_id: int, found: Triggered[int], *, readings: dict[str, list[list[Any]]]
) -> Alert | None:
    """None when the rule was switched off or deleted meanwhile.

    The caller holds the run's row, so nobody else raises one for this run.
    """
    rule_id, code = found.key
    # Held, so that it cannot be deleted under the alert that names it.
    rules = Rule.objects.select_for_update(no_key=True)
    rule = rules.filter(pk=rule_id, is_enabled=True).first()
    if rule is None:
        return None
    muted = MutedRun.objects.filter(run_id=run_id, until__gt=Now())
    alert = Alert.objects.create(
        run_id=run_id,
        rule=rule,
        code=code,
        metric=found.metric,
        step=found.step,
        value=finite(found.value),
        bound=finite(found.bound),
        read_as=clean_json(_read_as(rule, found)),
        is_muted=rule.is_muted or muted.exists(),
        readings=readings,
        groups=_telling_groups(run_id, found.step),
    )
    if rule.is_sent and not alert.is_muted:
        put_out(rule.team_id, Event.ALERT_FIRED, alert=alert)
    return alert


def _read_as(rule: Rule, found: Triggered[int]) -> dict[str, Any]:
    condition = rule.condition
    is_said = isinstance(found, WarningSeen)
    return {
        "name": _title(found.key[1]) if is_said else rule.name,
        "text": describe(rule),
        "why": found.message if isinstance(found, WarningSeen) else rule.why,
        "kind": condition.kind.value,
        "threshold": condition.threshold,
        "for_steps": condition.for_steps,
        "back": condition.back,
    }


def _title(code: str) -> str:
    """Of a warning; another trainer's may have any code."""
    return TITLES.get(code) or f"The trainer warns: {code}"


def _telling_groups(run_id: int, step: int) -> list[list[int]]:
    """Of the last step with groups: the lowest, the middle and the highest reward."""
    current = Group.objects.current().filter(run_id=run_id, step__lte=step)
    last = current.order_by("-step").values_list("step", flat=True).first()
    if last is None:
        return []
    scored = current.filter(step=last).order_by("reward_mean", "prompt_index")
    prompts = list(scored.values_list("prompt_index", flat=True))
    if len(prompts) > NUM_GROUPS:
        prompts = [prompts[0], prompts[len(prompts) // 2], prompts[-1]]
    return [[last, prompt] for prompt in prompts]


def resolve(alert: Alert, *, step: int) -> bool:
    """Its condition no longer holds; False when somebody closed it before."""
    still = Alert.objects.filter(pk=alert.pk, state__in=OPEN)
    return bool(
        still.update(state=AlertState.RESOLVED, ended_at=Now(), ended_step=step)
    )


def keep_readings(alert: Alert) -> None:
    Alert.objects.filter(pk=alert.pk).update(readings=alert.readings)


def paused_before(run_id: int, found: Triggered[int]) -> bool:
    """Whether this very alert has paused the run, before its steps were gone back.

    Somebody resumed it since, knowing of it: it is not paused for that again.
    """
    return Alert.objects.filter(
        run_id=run_id,
        rule=found.key[0],
        code=found.key[1],
        step__gte=found.step,
        state=AlertState.SUPERSEDED,
        has_paused=True,
    ).exists()


def supersede(run_id: int, *, after: int) -> bool:
    """A resume goes back to this step: whether any alert changes by that.

    Called in the transaction that cuts the run's history.
    """
    later = Alert.objects.filter(run_id=run_id, step__gt=after).exclude(
        state=AlertState.SUPERSEDED
    )
    num_later = later.update(
        state=AlertState.SUPERSEDED, ended_at=Now(), ended_step=None
    )
    earlier = Alert.objects.filter(run_id=run_id, step__lte=after)
    # It was open at that step, and nobody knows yet when it will not be.
    ended_later = Q(state=AlertState.RESOLVED, ended_step__gt=after)
    opened = earlier.filter(ended_later, acknowledged_at__isnull=True).update(
        state=AlertState.FIRING, ended_at=None, ended_step=None
    )
    opened += earlier.filter(ended_later).update(
        state=AlertState.ACKNOWLEDGED, ended_at=None, ended_step=None
    )
    for alert in earlier.exclude(state=AlertState.SUPERSEDED).order_by("-id")[:50]:
        kept = {
            metric: [one for one in readings if one[0] <= after]
            for metric, readings in alert.readings.items()
        }
        if kept != alert.readings:
            Alert.objects.filter(pk=alert.pk).update(readings=kept)
    return bool(num_later or opened)
