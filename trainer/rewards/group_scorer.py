"""Scoring the completions of a prompt by a recipe, for a run or for a past one.

Rules that wait for others (`batching`) are asked for completions of many prompts at
once, by threads of this process; the rest is scored by workers, or here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

from trainer.rewards.rule import Batching
from trainer.rewards.rules import RULES
from trainer.rewards.sample import Sample
from trainer.rewards.scoring import as_score, joined, judge, prepared, weigh
from trainer.rewards.spec import Recipe, RuleSpec, is_slow
from trainer.rewards.workers import Scored, Workers


def asks_others(rule: RuleSpec) -> bool:
    """Whether a rule waits for others, and so is asked for many completions at once."""
    return RULES[rule.kind].batching is not None


class Batches:
    """A queue for each rule that waits for others. Any thread may submit."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._queues: dict[str, _Queue] = {}

    def submit(self, rule: RuleSpec, samples: Sequence[Sample]) -> Future[Scored]:
        """Have some completions judged; what the rule raises, the result does."""
        key = rule.model_dump_json()
        with self._lock:
            if key not in self._queues:
                self._queues[key] = _Queue(rule)
            return self._queues[key].put(samples)

    def close(self) -> None:
        """Begin no call any more. What is under way is not waited for."""
        with self._lock:
            for queue in self._queues.values():
                queue.close()


@dataclass(frozen=True)
class _Waiting:
    samples: list[Sample]
    future: Future[Scored]


class _Queue:
    """Completions that wait for a call to be free, and go together with the next."""

    def __init__(self, rule: RuleSpec) -> None:
        batching = RULES[rule.kind].batching
        assert batching is not None
        self._rule = rule
        self._batching: Batching[Any] = batching
        self._params = rule.checked_params()
        self._lock = Lock()
        self._waiting: deque[_Waiting] = deque()
        self._threads = ThreadPoolExecutor(
            batching.num_calls(self._params), thread_name_prefix=f"ask-{rule.name}"
        )

    def put(self, samples: Sequence[Sample]) -> Future[Scored]:
        waiting = _Waiting([prepared(sample) for sample in samples], Future())
        with self._lock:
            self._waiting.append(waiting)
        # One for each group; those whose group went with another find nothing to do.
        self._threads.submit(self._call)
        return waiting.future

    def close(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
        for each in waiting:
            each.future.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _call(self) -> None:
        groups = self._take()
        if not groups:
            return
        try:
            found = self._judge([s for each in groups for s in each.samples])
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            for each in groups:
                each.future.set_exception(error)
            return
        for each in groups:
            size = len(each.samples)
            scores, found.scores[:size] = found.scores[:size], []
            # Each group's share, so that together they are what the call took.
            share = size / max(1, sum(len(group.samples) for group in groups))
            each.future.set_result(Scored(scores=scores, seconds=found.seconds * share))

    def _take(self) -> list[_Waiting]:
        """As many groups as go into one call; one that is larger goes alone."""
        most = self._batching.most_at_once(self._params)
        taken: list[_Waiting] = []
        with self._lock:
            while self._waiting:
                size = sum(len(each.samples) for each in [*taken, self._waiting[0]])
                if taken and size > most:
                    break
                group = self._waiting.popleft()
                if group.future.set_running_or_notify_cancel():
                    taken.append(group)
        return taken

    def _judge(self, samples: list[Sample]) -> Scored:
        begin = time.perf_counter()
        outcomes = self._batching.ask(samples, self._params)
        scores = [as_score({self._rule.name: outcome}) for outcome in outcomes]
        return Scored(scores=scores, seconds=time.perf_counter() - begin)


class GroupScorer:
    """Scores in processes of its own, or in this one where it has none.

    Where a completion is scored changes no score. Any thread may use it.
    """

    def __init__(self, num_workers: int, *, only_slow: bool = False) -> None:
        """
        Args:
            num_workers: processes; 0: this one scores, when a result is asked for.
            only_slow: leave to the processes what is slow, since the rest takes less
                time than sending it.
        """
        self._only_slow = only_slow
        self._workers = Workers(num_workers) if num_workers else None
        self._batches = Batches()

    def submit(
        self, recipe: Recipe, samples: Sequence[Sample], *, name: str, step: int = 1
    ) -> Callable[[], Scored]:
        """Have completions of one prompt scored; to be called for the result.

        What others are asked for is asked by threads of this process at once.
        """
        own = [rule for rule in recipe.rules if not asks_others(rule)]
        asked = [
            self._batches.submit(rule, samples).result
            for rule in recipe.rules
            if asks_others(rule)
        ]
        if self._workers is None or (self._only_slow and not is_slow(recipe)):
            judged: Callable[[], Scored] = partial(_judge_here, own, samples)
        else:
            judged = self._workers.submit(own, samples, name=name).result

        def result() -> Scored:
            found = [judged(), *(each() for each in asked)]
            scores = zip(*(each.scores for each in found), strict=True)
            return Scored(
                scores=[weigh(recipe, joined(each), step=step) for each in scores],
                seconds=sum(each.seconds for each in found),
            )

        return result

    def close(self) -> None:
        self._batches.close()
        if self._workers is not None:
            self._workers.close()


def _judge_here(rules: Sequence[RuleSpec], samples: Sequence[Sample]) -> Scored:
    begin = time.perf_counter()
    scores = judge(rules, samples)
    return Scored(scores=scores, seconds=time.perf_counter() - begin)
