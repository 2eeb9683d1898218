"""Evaluates alert rules on one run, for the training loop and for the dashboard."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from trainer.alerts.conditions import REWARD, Kind, Track, finite, is_evaluated
from trainer.alerts.rules import NOT_FINITE, AlertRule

REWARDS = 10  # training steps whose mean reward stands beside an evaluation
MEASURED_BY_TIME = frozenset({"tokens_per_second", "time/environment_share"})

Id = TypeVar("Id", bound=Hashable)
# A rule, and the evaluated metric where it watches several; else "".
Key = tuple[Id, str]
Metrics = Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Triggered(Generic[Id]):
    """A rule's condition has held for long enough."""

    key: Key[Id]  # the rule, and the evaluated metric of one that watches many
    metric: str
    step: int
    value: float | None
    bound: float | None


@dataclass(frozen=True, kw_only=True)
class Recovered(Generic[Id]):
    """The condition of an open alert has not held for long enough."""

    key: Key[Id]
    step: int


class RuleEvaluator(Generic[Id]):
    """Some rules over one run, by an identifier of the caller's.

    A rule that has triggered triggers again only once it has recovered.
    """

    def __init__(self, rules: Mapping[Id, AlertRule]) -> None:
        self.rules = rules
        self.known: set[str] = set()  # metrics that the run has had
        self.open: dict[Key[Id], float | None] = {}  # and the bound it passed
        self.tracks: dict[Key[Id], Track] = {}
        self.metrics: dict[Key[Id], str] = {}
        self._of_steps: dict[str, list[Key[Id]]] = {REWARD: []}  # by metric
        self._of_evaluations: dict[str, list[Key[Id]]] = {}
        self._rewards: deque[float] = deque(maxlen=REWARDS)
        for rule_id, rule in rules.items():
            if rule.condition.kind not in (Kind.OVERFITS, Kind.WARNED):
                self._follow((rule_id, ""), rule.metric)

    def _follow(self, key: Key[Id], metric: str) -> None:
        self.metrics[key] = metric
        keys = self._of_evaluations if is_evaluated(metric) else self._of_steps
        keys.setdefault(metric, []).append(key)
        self.tracks[key] = Track(self.rules[key[0]].condition)
        self.tracks[key].hold(self.open.get(key))

    def opened(self, key: Key[Id], bound: float | None) -> None:
        """Keep the bound until the alert recovers."""
        self.open[key] = bound
        if track := self.tracks.get(key):
            track.hold(bound)

    def closed(self, key: Key[Id]) -> None:
        self.open.pop(key, None)
        if track := self.tracks.get(key):
            track.hold(None)

    def begin_phase(self) -> None:
        for key, track in self.tracks.items():
            if not is_evaluated(self.metrics[key]):
                track.begin_phase()

    def step(
        self, step: int, metrics: Metrics, *, without: Collection[str] = ()
    ) -> Iterator[Triggered[Id] | Recovered[Id]]:
        """Yield what comes of a step's metrics; rules of the codes in `without` say
        nothing of it, and are not open.
        """
        keys = self.read_step(step, metrics, without=without)
        if without:
            idle = [k for k in self.open if self.rules[k[0]].code in without]
            yield from (self._recover(key, step) for key in idle)
        yield from self._judge(keys, step, metrics)

    def evaluation(
        self, step: int, metrics: Metrics
    ) -> Iterator[Triggered[Id] | Recovered[Id]]:
        """Judge an evaluation by its metrics `eval/<set>/…`."""
        yield from self._judge(self.read_evaluation(step, metrics), step, metrics)

    def read_step(
        self, step: int, metrics: Metrics, *, without: Collection[str] = ()
    ) -> list[Key[Id]]:
        """Take in a step's metrics; the tracks that count it."""
        self.known.update(metrics)
        counted = []
        for metric, keys in self._of_steps.items():
            if metric not in self.known:
                continue
            # TRL logs its loss every few steps: what a step does not have is not
            # measured, and a number that is not finite is null.
            quiet = {*without} if metric in metrics else {*without, NOT_FINITE}
            if quiet:
                keys = [k for k in keys if self.rules[k[0]].code not in quiet]
            if self.read(metric, step, finite(metrics.get(metric)), keys):
                counted += keys
        reward = finite(metrics.get(REWARD))
        if reward is not None:
            self._rewards.append(reward)
        return counted

    def read_evaluation(self, step: int, metrics: Metrics) -> list[Key[Id]]:
        counted = []
        for metric, value in metrics.items():
            self._follow_overfits(metric)
            keys, reward = self._of_evaluations.get(metric), self.recent_reward
            if keys and self.read(metric, step, finite(value), keys, reward=reward):
                counted += keys
        return counted

    def read(
        self,
        metric: str,
        step: int,
        value: float | None,
        keys: Collection[Key[Id]],
        *,
        reward: float | None = None,
    ) -> bool:
        """Return whether this reading counts, for any of the metric's tracks."""
        tracks = [self.tracks[key] for key in keys]
        if value is None and not any(track.counts(value) for track in tracks):
            return False
        for track in tracks:
            track.read(value, reward=reward)
        return True

    def remember_rewards(self, rewards: Iterable[float]) -> None:
        self._rewards.clear()
        self._rewards.extend(rewards)

    @property
    def recent_reward(self) -> float | None:
        return sum(self._rewards) / len(self._rewards) if self._rewards else None

    def _follow_overfits(self, metric: str) -> None:
        parts = metric.split("/")
        if parts[0] != "eval" or parts[-1] != "mean":
            return
        for rule_id, rule in self.rules.items():
            key = (rule_id, metric)
            if rule.condition.kind is Kind.OVERFITS and key not in self.tracks:
                self._follow(key, metric)

    def _judge(
        self, keys: Iterable[Key[Id]], step: int, metrics: Metrics
    ) -> Iterator[Triggered[Id] | Recovered[Id]]:
        for key in keys:
            track = self.tracks[key]
            if key in self.open:
                if track.has_recovered:
                    yield self._recover(key, step)
            elif track.fires:
                self.opened(key, track.bound)
                metric = self.metrics[key]
                yield Triggered(
                    key=key,
                    metric=metric,
                    step=step,
                    value=finite(metrics.get(metric)),
                    bound=track.bound,
                )

    def _recover(self, key: Key[Id], step: int) -> Recovered[Id]:
        self.closed(key)
        return Recovered(key=key, step=step)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, so that a resumed run does not warn twice.

        Speeds are left out: runs that are equal have equal checkpoints, and a run may
        resume on another machine.
        """
        keys = [key for key in self.tracks if self.metrics[key] not in MEASURED_BY_TIME]
        return {
            "tracks": [[*key, self.tracks[key].state_dict()] for key in keys],
            "open": [[*key, self.open[key]] for key in keys if key in self.open],
            "known": sorted(self.known & self._of_steps.keys()),
            "rewards": list(self._rewards),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Rules that a checkpoint of another release does not know begin again."""
        self.known.update(state["known"])
        self.remember_rewards(state["rewards"])
        for rule_id, code, track in state["tracks"]:
            self._follow_overfits(code)
            if (rule_id, code) in self.tracks:
                self.tracks[rule_id, code].load_state_dict(track)
        for rule_id, code, bound in state["open"]:
            if (rule_id, code) in self.tracks:
                self.opened((rule_id, code), bound)
