"""What ingest calls: events in, alerts out, in ingest's own transaction."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from dashboard.alerts.firing import (
    keep_readings,
    paused_before,
    raise_alert,
    resolve,
)
from dashboard.alerts.history import read_watch
from dashboard.alerts.models import Alert
from dashboard.alerts.rules import rules_of, signature
from dashboard.alerts.watch import Calm, Finding, Watch
from dashboard.runs.models import Run
from trainer.events import Evaluated, Event, PhaseStarted, StepFinished, Warned

RULES_SECONDS = 5.0  # until a changed rule is heard of
MAX_WATCHES = 8  # of one process; the default worker may hold several runs in turn
HEEDED = (StepFinished, Evaluated, Warned, PhaseStarted)


@dataclass
class Held:
    """A watch, and the place in the log up to which it has seen the run."""

    watch: Watch
    epoch: int
    line: int
    signature: tuple[object, ...]
    looked_at: float


@dataclass
class Outcome:
    """What ingest has still to do: ring the pages, pause the run."""

    has_changed: bool = False
    pausing: list[Alert] = field(default_factory=list)


_held: OrderedDict[int, Held] = OrderedDict()


def observe(
    run_id: int, events: Sequence[Event], *, first_seq: int, known: Sequence[str]
) -> Outcome:
    """Consecutive events of one log, already stored; `known` metrics were before.

    One query every 5 s while nothing fires. A watch that has not seen exactly the lines
    before these is thrown away: the transaction it saw them in was rolled back.
    """
    outcome = Outcome()
    held = _take(run_id, events, first_seq=first_seq, known=known)
    if held is None:
        return outcome
    for event in events:
        for found in held.watch.observe(event):
            _act(run_id, held.watch, found, outcome)
    _keep_collected(held.watch)
    held.epoch, held.line = events[-1].epoch, events[-1].line
    _held[run_id] = held
    while len(_held) > MAX_WATCHES:
        _held.popitem(last=False)
    return outcome


def _take(
    run_id: int, events: Sequence[Event], *, first_seq: int, known: Sequence[str]
) -> Held | None:
    """None when there is nothing to see. It is put back once it has seen the events:
    one that an error interrupts is not used again."""
    held = _held.pop(run_id, None)
    if held is not None and not _continues(held, events[0]):
        held = None
    if not any(isinstance(event, HEEDED) for event in events):
        return held
    if held is not None and _is_current(run_id, held):
        return held
    run = Run.objects.get(pk=run_id)
    watch = read_watch(run, before=first_seq, known=set(known))
    return Held(
        watch=watch,
        epoch=0,
        line=0,
        signature=signature(watch.rules.values()),
        looked_at=time.monotonic(),
    )


def _continues(held: Held, first: Event) -> bool:
    return (held.epoch, held.line + 1) == (first.epoch, first.line)


def _is_current(run_id: int, held: Held) -> bool:
    if time.monotonic() - held.looked_at < RULES_SECONDS:
        return True
    held.looked_at = time.monotonic()
    run = Run.objects.only("id", "name", "team_id").get(pk=run_id)
    return signature(rules_of(run)) == held.signature


def _act(run_id: int, watch: Watch, found: Finding | Calm, outcome: Outcome) -> None:
    if isinstance(found, Calm):
        outcome.has_changed |= resolve(watch.open[found.key], step=found.step)
        watch.closed(found.key)
        return
    alert = raise_alert(run_id, found)
    if alert is None:
        return
    watch.opened((found.rule.pk, found.code), alert)
    outcome.has_changed = True
    rule = alert.rule
    assert rule is not None, "it was raised for one"
    if rule.pauses_run and not alert.is_muted and not paused_before(run_id, found):
        outcome.pausing.append(alert)


def _keep_collected(watch: Watch) -> None:
    for collecting in watch.collecting:
        if collecting.is_changed:
            keep_readings(collecting.alert)
            collecting.is_changed = False
    watch.collecting = [one for one in watch.collecting if not one.is_done]
