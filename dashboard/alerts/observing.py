"""What ingest calls: events in, alerts out, in ingest's own transaction."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from dashboard.alerts.evaluator import RunEvaluator
from dashboard.alerts.firing import (
    keep_readings,
    paused_before,
    raise_alert,
    resolve,
)
from dashboard.alerts.history import read_evaluator
from dashboard.alerts.models import Alert
from dashboard.alerts.rules import rules_of, signature
from dashboard.runs.models import Run
from trainer.alert_evaluator import Recovered, Triggered
from trainer.events import Evaluated, Event, PhaseStarted, StepFinished, Warned

RULES_SECONDS = 5.0  # until a changed rule is heard of
MAX_CACHED = 8  # of one process; the default worker may hold several runs in turn
HEEDED = (StepFinished, Evaluated, Warned, PhaseStarted)


@dataclass
class CachedEvaluator:
    """One that has seen the run up to a place in its log."""

    evaluator: RunEvaluator
    epoch: int
    line: int
    signature: tuple[object, ...]
    looked_at: float


@dataclass
class Outcome:
    """What ingest has still to do: ring the pages, pause the run."""

    has_changed: bool = False
    pausing: list[Alert] = field(default_factory=list)


_cached: OrderedDict[int, CachedEvaluator] = OrderedDict()


def observe(
    run_id: int, events: Sequence[Event], *, first_seq: int, known: Sequence[str]
) -> Outcome:
    """Consecutive events of one log, already stored; `known` metrics were before.

    One query every 5 s while nothing fires. An evaluator that has not seen exactly the
    lines before these is thrown away: the transaction it saw them in was rolled back.
    """
    outcome = Outcome()
    cached = _take(run_id, events, first_seq=first_seq, known=known)
    if cached is None:
        return outcome
    for event in events:
        for found in cached.evaluator.observe(event):
            _act(run_id, cached.evaluator, found, outcome)
    _keep_collected(cached.evaluator)
    cached.epoch, cached.line = events[-1].epoch, events[-1].line
    _cached[run_id] = cached
    while len(_cached) > MAX_CACHED:
        _cached.popitem(last=False)
    return outcome


def _take(
    run_id: int, events: Sequence[Event], *, first_seq: int, known: Sequence[str]
) -> CachedEvaluator | None:
    """None when there is nothing to see. It is put back once it has seen the events:
    one that an error interrupts is not used again."""
    cached = _cached.pop(run_id, None)
    if cached is not None and not _continues(cached, events[0]):
        cached = None
    if not any(isinstance(event, HEEDED) for event in events):
        return cached
    if cached is not None and _is_current(run_id, cached):
        return cached
    run = Run.objects.get(pk=run_id)
    evaluator = read_evaluator(run, before=first_seq, known=set(known))
    return CachedEvaluator(
        evaluator=evaluator,
        epoch=0,
        line=0,
        signature=signature(evaluator.rows.values()),
        looked_at=time.monotonic(),
    )


def _continues(cached: CachedEvaluator, first: Event) -> bool:
    return (cached.epoch, cached.line + 1) == (first.epoch, first.line)


def _is_current(run_id: int, cached: CachedEvaluator) -> bool:
    if time.monotonic() - cached.looked_at < RULES_SECONDS:
        return True
    cached.looked_at = time.monotonic()
    run = Run.objects.only("id", "name", "team_id").get(pk=run_id)
    return signature(rules_of(run)) == cached.signature


def _act(
    run_id: int,
    evaluator: RunEvaluator,
    found: Triggered[int] | Recovered[int],
    outcome: Outcome,
) -> None:
    if isinstance(found, Recovered):
        over = evaluator.alerts.pop(found.key)
        outcome.has_changed |= resolve(over, step=found.step)
        return
    alert = raise_alert(run_id, found, readings=evaluator.readings_of(found))
    if alert is None:
        evaluator.closed(found.key)
        return
    evaluator.raised(found.key, alert)
    outcome.has_changed = True
    rule = alert.rule
    assert rule is not None, "it was raised for one"
    if rule.pauses_run and not alert.is_muted and not paused_before(run_id, found):
        outcome.pausing.append(alert)


def _keep_collected(evaluator: RunEvaluator) -> None:
    for collecting in evaluator.collecting:
        if collecting.is_changed:
            keep_readings(collecting.alert)
            collecting.is_changed = False
    evaluator.collecting = [one for one in evaluator.collecting if not one.is_done]
