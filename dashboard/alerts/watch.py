"""The rules of one run over its events, as they are ingested.

Held by the process that ingests: a few floats a rule. Everything in it follows from
the rows that are stored, so it is read anew (history.py) whenever it may not fit them:
after a restart, a resume, a change of a rule, a transaction that was rolled back.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dashboard.alerts.built_in import COVERED
from dashboard.alerts.conditions import Condition, Kind, Track
from dashboard.alerts.models import Alert, Rule
from dashboard.alerts.overfitting import REWARDS, Overfit
from dashboard.runs.models import REWARD
from dashboard.samples.cleaning import clean_text
from trainer.alarms import ALARMS
from trainer.events import Evaluated, Event, PhaseStarted, StepFinished, Warned

NAME_LENGTH = 120
AROUND = 5  # readings kept before and after the one that fired
CALM_AFTER_WARNING = 5  # steps on the right side of the bound
ALARMS_BY_CODE = {alarm.code: alarm for alarm in ALARMS}
# Read in every run: evidence of trainer warnings, and of evaluations.
WATCHED = {REWARD, *(alarm.metric for alarm in ALARMS)}

Key = tuple[int, str]  # a rule's id, and which of its findings
Reading = tuple[int, float | None]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a rule found; `said` is the trainer's own message."""

    rule: Rule
    code: str = ""
    metric: str = ""
    step: int
    value: float | None
    bound: float | None
    readings: dict[str, list[list[Any]]] = field(default_factory=dict)
    said: str = ""


@dataclass(frozen=True, kw_only=True)
class Calm:
    """An open alert whose condition has not held for long enough."""

    key: Key
    step: int


@dataclass
class Collecting:
    """An alert that still gets the readings after its step."""

    alert: Alert
    is_changed: bool = False

    def add(self, metric: str, step: int, value: float | None) -> None:
        known = self.alert.readings.get(metric)
        if known is None or self._is_full(metric):
            return
        if known and known[-1][0] >= step:
            return  # the alert was raised with it
        known.append([step, value])
        self.is_changed = True

    @property
    def is_done(self) -> bool:
        return all(map(self._is_full, self.alert.readings))

    def _is_full(self, metric: str) -> bool:
        later = [1 for step, _ in self.alert.readings[metric] if step > self.alert.step]
        return len(later) >= AROUND


class Watch:
    """Rules that are on, with what each has seen of the run."""

    def __init__(self, rules: list[Rule], known: set[str]) -> None:
        self.rules = {rule.pk: rule for rule in rules}
        self.known = known  # metrics that the run has had
        self.open: dict[Key, Alert] = {}
        self.tracks: dict[Key, Track] = {}
        self.metrics: dict[Key, str] = {}
        self._keys: dict[str, list[Key]] = {metric: [] for metric in WATCHED}
        self.overfits: dict[Key, Overfit] = {}
        self.collecting: list[Collecting] = []
        self._last: dict[str, deque[Reading]] = {}
        self._rewards: deque[float] = deque(maxlen=REWARDS)
        for rule in rules:
            if rule.kind not in (Kind.OVERFITS, Kind.WARNED):
                self.follow((rule.pk, ""), rule.metric, rule.condition)

    def follow(self, key: Key, metric: str, condition: Condition) -> Track:
        self.metrics[key] = metric
        self._keys.setdefault(metric, []).append(key)
        self.tracks[key] = Track(condition)
        return self.tracks[key]

    @property
    def reach(self) -> int:
        return max((t.condition.reach for t in self.tracks.values()), default=1)

    def opened(self, key: Key, alert: Alert) -> None:
        """Its bound stays; a warning of the trainer is followed until it calms."""
        self.open[key] = alert
        rule = self.rules[key[0]]
        if rule.kind == Kind.WARNED:
            self._follow_warning(key, alert)
        if track := self.tracks.get(key):
            track.held = alert.bound
        self.collect(alert)

    def collect(self, alert: Alert) -> None:
        """An alert may be over before it has all readings after its step."""
        collecting = Collecting(alert)
        if not collecting.is_done:
            self.collecting.append(collecting)

    def closed(self, key: Key) -> None:
        self.open.pop(key, None)
        if self.rules[key[0]].kind == Kind.WARNED:
            self._unfollow(key)
        elif track := self.tracks.get(key):
            track.held = None

    def _unfollow(self, key: Key) -> None:
        if self.tracks.pop(key, None) is not None:
            self._keys[self.metrics.pop(key)].remove(key)

    def _follow_warning(self, key: Key, alert: Alert) -> None:
        alarm = ALARMS_BY_CODE.get(alert.code)
        if alarm is None or alert.bound is None:
            return  # it is open until somebody acknowledges it
        kind = Kind.BELOW if alarm.falls else Kind.ABOVE
        condition = Condition(
            kind=kind, threshold=alert.bound, for_steps=CALM_AFTER_WARNING
        )
        self.follow(key, alarm.metric, condition)

    def reaches(self) -> dict[str, int]:
        """How many values of each metric its conditions look back on."""
        found: dict[str, int] = {}
        for key, track in self.tracks.items():
            if track.heeds(None) or is_evaluated(self.metrics[key]):
                continue
            metric = self.metrics[key]
            found[metric] = max(found.get(metric, 0), track.condition.reach)
        return found

    def observe(self, event: Event) -> Iterator[Finding | Calm]:
        """What comes of this event; the caller says what was opened and closed."""
        if isinstance(event, PhaseStarted):
            for key, track in self.tracks.items():
                if not is_evaluated(self.metrics[key]):
                    track.begin_phase()
        elif isinstance(event, StepFinished):
            yield from self.step(event.step, event.metrics)
        elif isinstance(event, Evaluated):
            yield from self.evaluation(event.step, event.metrics)
        elif isinstance(event, Warned):
            yield from self._warning(event)

    def step(
        self, step: int, metrics: dict[str, float | None]
    ) -> Iterator[Finding | Calm]:
        self.known.update(metrics)
        read = [m for m in self._keys if m in self.known and not is_evaluated(m)]
        read = [m for m in read if self.read(m, step, finite(metrics.get(m)))]
        reward = finite(metrics.get(REWARD))
        if reward is not None:
            self._rewards.append(reward)
        for metric in read:
            for key in [*self._keys[metric]]:
                yield from self._judge(key, step)

    def evaluation(
        self, step: int, metrics: dict[str, float | None]
    ) -> Iterator[Finding | Calm]:
        for name, value in metrics.items():
            metric = clean_text(name)[:NAME_LENGTH]
            overfits = self._overfits_of(metric)
            if overfits or metric in self._keys:
                self.read(metric, step, finite(value))
            for key in overfits:
                self.overfits[key].read(finite(value), self.recent_reward)
            for key in [*self._keys.get(metric, ()), *overfits]:
                yield from self._judge(key, step)

    def remember_rewards(self, rewards: list[float]) -> None:
        self._rewards.clear()
        self._rewards.extend(rewards)

    @property
    def recent_reward(self) -> float | None:
        return sum(self._rewards) / len(self._rewards) if self._rewards else None

    def _overfits_of(self, metric: str) -> list[Key]:
        parts = metric.split("/")
        if parts[0] != "eval" or parts[-1] != "mean":
            return []
        rules = [r for r in self.rules.values() if r.kind == Kind.OVERFITS]
        for rule in rules:
            self.overfits.setdefault((rule.pk, metric), Overfit(rule.condition))
        return [(rule.pk, metric) for rule in rules]

    def read(self, metric: str, step: int, value: float | None) -> bool:
        """Whether any of the metric's rules counts this step."""
        tracks = [self.tracks[key] for key in self._keys.get(metric, ())]
        if value is None and not any(track.heeds(value) for track in tracks):
            return False
        last = self._last.setdefault(metric, deque(maxlen=AROUND + 1))
        last.append((step, value))
        for track in tracks:
            track.read(value)
        for collecting in self.collecting:
            collecting.add(metric, step, value)
        return True

    def _judge(self, key: Key, step: int) -> Iterator[Finding | Calm]:
        track = self.tracks.get(key) or self.overfits.get(key)
        rule = self.rules[key[0]]
        if track is None:
            return
        if key in self.open:
            if track.has_calmed:
                yield Calm(key=key, step=step)
        elif track.fires and rule.kind != Kind.WARNED:
            metric = key[1] or self.metrics[key]
            shown = [metric, REWARD] if rule.kind == Kind.OVERFITS else [metric]
            yield Finding(
                rule=rule,
                code=key[1],
                metric=metric,
                step=step,
                value=self._last[metric][-1][1],
                bound=track.bound,
                readings=self._readings(shown),
            )

    def _warning(self, event: Warned) -> Iterator[Finding]:
        code = clean_text(event.code)[:NAME_LENGTH]
        alarm = ALARMS_BY_CODE.get(code)
        for rule in self.rules.values():
            if rule.kind != Kind.WARNED or code in COVERED:
                continue
            if (rule.pk, code) in self.open:
                continue
            yield Finding(
                rule=rule,
                code=code,
                metric=alarm.metric if alarm else "",
                step=event.step,
                value=event.value,
                bound=event.threshold,
                readings=self._readings([alarm.metric]) if alarm else {},
                said=event.message,
            )

    def _readings(self, metrics: list[str]) -> dict[str, list[list[Any]]]:
        return {m: [[s, v] for s, v in self._last.get(m, ())] for m in metrics}


def is_evaluated(metric: str) -> bool:
    """Told by evaluations, not by steps."""
    return metric.startswith("eval/")


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
