"""Processes that score completions while the trainer samples.

A rule holds Python's lock as long as it computes, so in a thread of the trainer it
would hold up sampling. A worker knows the rules and nothing else: no torch, no secrets.

They are children as graders are, and no `ProcessPoolExecutor`: that one is broken as a
whole by one death, cannot end a worker that hangs, shares signals with the trainer, and
its idle workers outlive a trainer that is killed.

`GroupScorer` scores a prompt's completions by a recipe, for a run or for a past one.
Rules that wait for others (`batching`) are asked for completions of many prompts at
once, by threads of this process; the rest is scored by workers, or here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from threading import Lock
from typing import Any

from trainer.host import tick
from trainer.rewards.child import Child, NoReply
from trainer.rewards.judge import GRACE_SECONDS, START_SECONDS
from trainer.rewards.rule import Batching, Sample, counting_usage
from trainer.rewards.rules import RULES
from trainer.rewards.scoring import Score, as_score, joined, judge, prepared, weigh
from trainer.rewards.spec import Recipe, RuleSpec, is_slow, judges_groups

# What a completion may take beside its rules' own limits: rules without one need
# milliseconds, but both graders behind a worker may have to be started first.
_PATIENCE_SECONDS = 2 * START_SECONDS
_MAX_LOSSES = 3  # of workers by one group, while each rule does well by itself


class ScoringFailed(Exception):
    """A completion could not be scored; the text is for the user."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Scores in the order of their samples, and the seconds that they took."""

    scores: list[Score]
    seconds: float


class Workers:
    """So many processes, which start with the first completions. Any thread may ask."""

    def __init__(self, num_workers: int) -> None:
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="scoring")
        self._lock = Lock()
        self._all = [_Worker() for _ in range(num_workers)]
        self._idle = list(self._all)

    def submit(
        self, rules: Sequence[RuleSpec], samples: Sequence[Sample], *, name: str
    ) -> Future[Scored]:
        """Judge completions of one prompt, which errors call by its name.

        The scores have no totals yet. The result raises what a rule raises, as in this
        process; ScoringFailed where a completion ends or holds up its worker, and
        another one too.
        """
        return self._threads.submit(self._score, rules, samples, name)

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        for worker in self._all:
            worker.stop()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._all:
            worker.end()

    def _score(
        self, rules: Sequence[RuleSpec], samples: Sequence[Sample], name: str
    ) -> Scored:
        with self._lock:
            worker = self._idle.pop()  # the last one used: it is running already
        begin = time.perf_counter()
        try:
            scores = worker.score(rules, samples, name=name)
        finally:
            with self._lock:
                self._idle.append(worker)
        return Scored(scores=scores, seconds=time.perf_counter() - begin)


class _Worker:
    """A process, or its successor. For one thread at a time, but for `stop`."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._is_ready = False
        self._lock = Lock()
        self._is_stopped = False

    def score(
        self, rules: Sequence[RuleSpec], samples: Sequence[Sample], *, name: str
    ) -> list[Score]:
        """Judge some completions: by rules for one, and by those for a group.

        What a process is lost at is tried again, rule by rule, so that the rule at
        fault has a name. Where each does well, the process was ended by a person, or by
        the kernel when memory ran out.
        """
        alone = [rule for rule in rules if not judges_groups(rule)]
        single_scores = self._judge(alone, [[sample] for sample in samples], name=name)
        together = [
            self._judge([rule], [samples], name=name)
            for rule in rules
            if judges_groups(rule)
        ]
        return [joined(scores) for scores in zip(single_scores, *together, strict=True)]

    def stop(self) -> None:
        """End the process, and let no other follow."""
        with self._lock:
            self._is_stopped = True
            if self._child is not None:
                self._child.kill()

    def end(self) -> None:
        with self._lock:
            self._let_go()

    def _judge(
        self, rules: Sequence[RuleSpec], parts: Sequence[Sequence[Sample]], *, name: str
    ) -> list[Score]:
        """Scores of all that the parts hold."""
        judged: list[list[Score]] = []
        num_losses = 0
        while len(judged) < len(parts):
            try:
                self._ask(rules, parts[len(judged) :], into=judged)
            except NoReply as loss:
                num_losses += 1
                part = parts[len(judged)]
                where = f"completion {len(judged) + 1} of {name}"
                if len(part) > 1:
                    where = f"the group of {name}"
                self._try_each_rule(rules, part, where=where)
                if num_losses == _MAX_LOSSES:
                    raise ScoringFailed(
                        f"The process that scores {where} ended {num_losses} times "
                        f"({loss}), although each rule alone scores it. Check the "
                        "free memory, lower reward.num_workers, or set it to 0."
                    ) from None
        return [score for scores in judged for score in scores]

    def _try_each_rule(
        self, rules: Sequence[RuleSpec], part: Sequence[Sample], *, where: str
    ) -> None:
        for rule in rules:
            try:
                self._ask([rule], [part], into=[])
            except NoReply as loss:
                raise ScoringFailed(
                    f'Rule "{rule.name}" ({rule.kind}) cannot score {where}, which '
                    f"begins {part[0].completion[:80]!r}: its process ended twice "
                    f"({loss}). Remove the rule from the reward, or the row from the "
                    "data, and resume from the last checkpoint."
                ) from None

    def _ask(
        self,
        rules: Sequence[RuleSpec],
        parts: Sequence[Sequence[Sample]],
        *,
        into: list[list[Score]],
    ) -> None:
        """Append the scores of each part, up to the one that the process is lost at."""
        child = self._running()
        self._wait_until_ready(child)
        seconds = sum(
            rule.params.get("timeout_seconds", 0.0) + GRACE_SECONDS for rule in rules
        )
        try:
            child.write(
                {
                    "rules": [rule.model_dump(mode="json") for rule in rules],
                    "parts": [
                        [sample_fields(sample) for sample in part] for part in parts
                    ],
                }
            )
            for part in parts:
                # The last of several answers may begin as the limit of all ends.
                times = sum(1 + isinstance(sample.answer, list) for sample in part)
                patience = _PATIENCE_SECONDS + seconds * times
                replies = child.read(timeout_seconds=patience)["scores"]
                tick()  # a group of those that take their whole limit takes long
                # What a rule raised there, it raises here, with its traceback.
                into.append(
                    [Score(**fields) for fields in replies]
                    if replies is not None
                    else judge(rules, part)
                )
        except BaseException:
            self.end()  # with replies that no one waits for any more
            raise

    def _running(self) -> Child:
        with self._lock:
            if self._is_stopped:
                raise ScoringFailed("The run has ended, so nothing is scored.")
            if self._child is None or not self._child.is_alive():
                self._let_go()
                self._child = Child("trainer.rewards.scoring_process")
            return self._child

    def _wait_until_ready(self, child: Child) -> None:
        if self._is_ready:
            return
        try:
            child.read(timeout_seconds=START_SECONDS)
        except NoReply as loss:
            self.end()
            raise ScoringFailed(
                f"A scoring process could not start: {loss}. Check the free memory, "
                "lower reward.num_workers, or set it to 0."
            ) from None
        self._is_ready = True

    def _let_go(self) -> None:
        if self._child is not None:
            self._child.end()
        self._child, self._is_ready = None, False


def sample_fields(sample: Sample) -> dict[str, object]:
    """Return a sample as the JSON that a child reads."""
    return {part.name: getattr(sample, part.name) for part in fields(sample)}


def calls_models(rule: RuleSpec) -> bool:
    """Return whether a rule waits for others, and so is asked for many completions at
    once.
    """
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
        for process in waiting:
            process.future.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _call(self) -> None:
        groups = self._take()
        if not groups:
            return
        try:
            scored = self._judge([s for group in groups for s in group.samples])
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            for sent_group in groups:
                sent_group.future.set_exception(error)
            return
        for sent_group in groups:
            size = len(sent_group.samples)
            scores, scored.scores[:size] = scored.scores[:size], []
            # Each group's share, so that together they are what the call took.
            share = size / max(1, sum(len(group.samples) for group in groups))
            sent_group.future.set_result(
                Scored(scores=scores, seconds=scored.seconds * share)
            )

    def _take(self) -> list[_Waiting]:
        """Take as many groups as go into one call; one that is larger goes alone."""
        most = self._batching.most_at_once(self._params)
        taken: list[_Waiting] = []
        with self._lock:
            while self._waiting:
                size = sum(len(call.samples) for call in [*taken, self._waiting[0]])
                if taken and size > most:
                    break
                group = self._waiting.popleft()
                if group.future.set_running_or_notify_cancel():
                    taken.append(group)
        return taken

    def _judge(self, samples: list[Sample]) -> Scored:
        begin = time.perf_counter()
        with counting_usage() as usage:
            outcomes = self._batching.ask(samples, self._params)
        scores = [as_score({self._rule.name: outcome}) for outcome in outcomes]
        if usage:
            scores[0] = replace(scores[0], usage={self._rule.name: dict(usage)})
        return Scored(scores=scores, seconds=time.perf_counter() - begin)


class GroupScorer:
    """Scores in processes of its own, or in this one where it has none.

    Where a completion is scored changes no score. Any thread may use it.
    """

    def __init__(self, num_workers: int, *, only_slow: bool = False) -> None:
        """Args: num_workers: processes; 0: this one scores, when a result is asked for.
        only_slow: leave to the processes what is slow, since the rest takes less time
        than sending it.
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
        own = [rule for rule in recipe.rules if not calls_models(rule)]
        asked = [
            self._batches.submit(rule, samples).result
            for rule in recipe.rules
            if calls_models(rule)
        ]
        if self._workers is None or (self._only_slow and not is_slow(recipe)):
            judged: Callable[[], Scored] = partial(_score_in_process, own, samples)
        else:
            judged = self._workers.submit(own, samples, name=name).result

        def result() -> Scored:
            parts = [judged(), *(reply() for reply in asked)]
            scores = zip(*(part.scores for part in parts), strict=True)
            return Scored(
                scores=[weigh(recipe, joined(score), step=step) for score in scores],
                seconds=sum(part.seconds for part in parts),
            )

        return result

    def close(self) -> None:
        self._batches.close()
        if self._workers is not None:
            self._workers.close()


def _score_in_process(rules: Sequence[RuleSpec], samples: Sequence[Sample]) -> Scored:
    begin = time.perf_counter()
    scores = judge(rules, samples)
    return Scored(scores=scores, seconds=time.perf_counter() - begin)
