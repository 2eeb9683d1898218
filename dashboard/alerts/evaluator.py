"""Evaluates the rules of one run over its events, as they are ingested.

Held by the process that ingests: a few floats a rule. All of it follows from the stored
rows, so it is read again (history.py) after a restart, a resume, a changed rule or a
rolled-back transaction.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.alerts.models import Alert, Rule
from dashboard.project.database import clean_text
from trainer.alerts.conditions import REWARD, Kind, is_evaluated
from trainer.alerts.evaluator import Key as AnyKey
from trainer.alerts.evaluator import Metrics, Recovered, RuleEvaluator, Triggered
from trainer.alerts.rules import BY_CODE
from trainer.events import Evaluated, Event, PhaseStarted, StepFinished, Warned

NAME_LENGTH = 120
AROUND = 5  # readings kept before and after the one that fired
RENAMED = {"dead_groups"}  # codes of warnings of older trainers, of rules in the list

Key = AnyKey[int]
Reading = tuple[int, float | None]


@dataclass(frozen=True, kw_only=True)
class WarningSeen(Triggered[int]):
    """A warning of the trainer that no rule covers."""

    message: str


@dataclass
class ReadingCollector:
    """An alert that still collects the readings after its step."""

    alert: Alert
    is_changed: bool = False

    def add(self, metric: str, step: int, value: float | None) -> None:
        readings = self.alert.readings.get(metric)
        if readings is None or self._is_full(metric):
            return
        if readings and readings[-1][0] >= step:
            return  # the alert was raised with it
        readings.append([step, value])
        self.is_changed = True

    @property
    def is_done(self) -> bool:
        return all(map(self._is_full, self.alert.readings))

    def _is_full(self, metric: str) -> bool:
        readings = self.alert.readings[metric]
        return sum(1 for step, _ in readings if step > self.alert.step) >= AROUND


class RunEvaluator(RuleEvaluator[int]):
    """A team's rules, by their ids, with the open alerts of one run.

    `left_out`: the first steps of the run's phases, with the built-in rules that do not
    apply to each.
    """

    def __init__(
        self, rules: list[Rule], left_out: Sequence[tuple[int, Collection[str]]] = ()
    ) -> None:
        super().__init__({rule.pk: rule.alert_rule for rule in rules})
        self.rows = {rule.pk: rule for rule in rules}
        self.alerts: dict[Key, Alert] = {}
        self.collecting: list[ReadingCollector] = []
        self._left_out = left_out
        self._last: defaultdict[str, deque[Reading]] = defaultdict(
            lambda: deque(maxlen=AROUND + 1)
        )

    @property
    def reach(self) -> int:
        return max((t.condition.reach for t in self.tracks.values()), default=1)

    def reaches(self) -> dict[str, int]:
        """Return the number of past values of each metric that its conditions need."""
        counts: dict[str, int] = {}
        for key, track in self.tracks.items():
            if track.counts(None) or is_evaluated(self.metrics[key]):
                continue
            metric = self.metrics[key]
            counts[metric] = max(counts.get(metric, 0), track.condition.reach)
        return counts

    def raised(self, key: Key, alert: Alert) -> None:
        self.opened(key, alert.bound)
        self.alerts[key] = alert
        self.collect(alert)

    def collect(self, alert: Alert) -> None:
        """Collect an alert's readings after its step; it may end before it has all."""
        collecting = ReadingCollector(alert)
        if not collecting.is_done:
            self.collecting.append(collecting)

    def observe(self, event: Event) -> Iterator[Triggered[int] | Recovered[int]]:
        """Triggered and recovered conditions of this event; the caller raises the
        alerts."""
        if isinstance(event, PhaseStarted):
            self.begin_phase()
        elif isinstance(event, StepFinished):
            yield from self.step(
                event.step, event.metrics, without=self.left_out(event.step)
            )
        elif isinstance(event, Evaluated):
            yield from self.evaluation(event.step, cleaned(event.metrics))
        elif isinstance(event, Warned):
            yield from self._warning(event)

    def left_out(self, step: int) -> Collection[str]:
        started = [codes for first, codes in self._left_out if first <= step]
        return started[-1] if started else ()

    def read(
        self,
        metric: str,
        step: int,
        value: float | None,
        keys: Collection[Key],
        *,
        reward: float | None = None,
    ) -> bool:
        if not super().read(metric, step, value, keys, reward=reward):
            return False
        self._last[metric].append((step, value))
        for collecting in self.collecting:
            collecting.add(metric, step, value)
        return True

    def _warning(self, event: Warned) -> Iterator[WarningSeen]:
        code = clean_text(event.code)[:NAME_LENGTH]
        if code in BY_CODE or code in RENAMED:
            return
        for rule_id, rule in self.rules.items():
            if rule.condition.kind is Kind.WARNED and (rule_id, code) not in self.open:
                yield WarningSeen(
                    key=(rule_id, code),
                    metric="",
                    step=event.step,
                    value=event.value,
                    bound=event.threshold,
                    message=event.message,
                )

    def readings_of(self, triggered: Triggered[int]) -> dict[str, list[list[Any]]]:
        """Return the last readings; for an evaluation also the training reward."""
        metrics = [triggered.metric] if triggered.metric else []
        if self.rules[triggered.key[0]].condition.kind is Kind.OVERFITS:
            metrics.append(REWARD)
        return {m: [[s, v] for s, v in self._last.get(m, ())] for m in metrics}


def cleaned(metrics: Metrics) -> Metrics:
    """Names as they are stored."""
    return {clean_text(name)[:NAME_LENGTH]: value for name, value in metrics.items()}
