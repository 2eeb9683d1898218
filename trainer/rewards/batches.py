"""Asking others for judgements, many at once: what a rule's `batching` is served by."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any

from trainer.rewards.rule import Batching
from trainer.rewards.rules import RULES
from trainer.rewards.sample import Sample
from trainer.rewards.scoring import as_score, prepared
from trainer.rewards.spec import RuleSpec
from trainer.rewards.workers import Scored


def asks_others(rule: RuleSpec) -> bool:
    """Whether a rule waits for others, and so is asked for many completions at once."""
    return RULES[rule.kind].batching is not None


class Batches:
    """A queue for each such rule. Any thread may submit."""

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
        except BaseException as error:  # noqa: BLE001 - whoever waits for it is told
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
