"""Processes that score completions while the trainer samples.

A rule holds Python's lock as long as it computes, so in a thread of the trainer it
would hold up sampling. A worker knows the rules and nothing else: no torch, no secrets.

They are children as graders are, and no `ProcessPoolExecutor`: that one is broken as a
whole by one death, cannot end a worker that hangs, shares signals with the trainer, and
its idle workers outlive a trainer that is killed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

from trainer.heartbeat import tick
from trainer.rewards.child import Child, NoReply
from trainer.rewards.judge import GRACE_SECONDS, START_SECONDS
from trainer.rewards.sample import Sample
from trainer.rewards.scoring import Score, joined, judge
from trainer.rewards.spec import RuleSpec, judges_groups

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
        found = self._judge(alone, [[sample] for sample in samples], name=name)
        together = [
            self._judge([rule], [samples], name=name)
            for rule in rules
            if judges_groups(rule)
        ]
        return [joined(scores) for scores in zip(found, *together, strict=True)]

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
        found: list[list[Score]] = []
        num_losses = 0
        while len(found) < len(parts):
            try:
                self._ask(rules, parts[len(found) :], into=found)
            except NoReply as loss:
                num_losses += 1
                part = parts[len(found)]
                where = _place(part, len(found), name)
                self._try_each_rule(rules, part, where=where)
                if num_losses == _MAX_LOSSES:
                    raise ScoringFailed(
                        f"The process that scores {where} was lost {num_losses} times "
                        f"({loss}), though each rule alone can score it. Is there "
                        "memory left? Lower reward.num_workers, or set it to 0."
                    ) from None
        return [score for scores in found for score in scores]

    def _try_each_rule(
        self, rules: Sequence[RuleSpec], part: Sequence[Sample], *, where: str
    ) -> None:
        for rule in rules:
            try:
                self._ask([rule], [part], into=[])
            except NoReply as loss:
                raise ScoringFailed(
                    f'Rule "{rule.name}" ({rule.kind}) cannot score {where}, which '
                    f"begins {part[0].completion[:80]!r}: the process that does it was "
                    f"lost twice ({loss}). Take the rule out of the recipe, or the row "
                    "out of the data, and resume from the last checkpoint."
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
                    "parts": [[_fields(sample) for sample in part] for part in parts],
                }
            )
            for part in parts:
                patience = _PATIENCE_SECONDS + seconds * len(part)
                found = child.read(timeout_seconds=patience)["scores"]
                tick()  # a group of those that take their whole limit takes long
                # What a rule raised there, it raises here, with its traceback.
                into.append(
                    [Score(**fields) for fields in found]
                    if found is not None
                    else judge(rules, part)
                )
        except BaseException:
            self.end()  # with replies that nobody waits for any more
            raise

    def _running(self) -> Child:
        with self._lock:
            if self._is_stopped:
                raise ScoringFailed(
                    "The run has ended, and nothing is scored any more."
                )
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
                f"A process that scores could not be started: {loss}. Is there memory "
                "left? Lower reward.num_workers, or set it to 0."
            ) from None
        self._is_ready = True

    def _let_go(self) -> None:
        if self._child is not None:
            self._child.end()
        self._child, self._is_ready = None, False


def _place(part: Sequence[Sample], number: int, name: str) -> str:
    if len(part) > 1:
        return f"the group of {name}"
    return f"completion {number + 1} of {name}"


def _fields(sample: Sample) -> dict[str, object]:
    return {
        "prompt": sample.prompt,
        "completion": sample.completion,
        "answer": sample.answer,
        "columns": dict(sample.columns),
        "messages": [dict(message) for message in sample.messages],
        "before": sample.before,
    }
