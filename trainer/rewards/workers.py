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

from trainer.rewards.child import Child, NoReply
from trainer.rewards.judge import GRACE_SECONDS, START_SECONDS
from trainer.rewards.sample import Sample
from trainer.rewards.scoring import Score, score_completion
from trainer.rewards.spec import Recipe

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
        self, recipe: Recipe, samples: Sequence[Sample], *, name: str
    ) -> Future[Scored]:
        """Score completions of one prompt, which errors call by its name.

        The result raises what a rule raises, as in this process; ScoringFailed where a
        completion ends or holds up its worker, and another one too.
        """
        return self._threads.submit(self._score, recipe, samples, name)

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        for worker in self._all:
            worker.stop()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._all:
            worker.end()

    def _score(self, recipe: Recipe, samples: Sequence[Sample], name: str) -> Scored:
        with self._lock:
            worker = self._idle.pop()  # the last one used: it is running already
        begin = time.perf_counter()
        try:
            scores = worker.score(recipe, samples, name=name)
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
        self, recipe: Recipe, samples: Sequence[Sample], *, name: str
    ) -> list[Score]:
        """Score some completions; one that a process is lost at is tried again.

        That is done rule by rule, so that the rule at fault has a name. Where each does
        well, the process was ended by a person, or by the kernel when memory ran out.
        """
        scores: list[Score] = []
        num_losses = 0
        while len(scores) < len(samples):
            try:
                self._ask(recipe, samples[len(scores) :], into=scores)
            except NoReply as loss:
                num_losses += 1
                where = f"completion {len(scores) + 1} of {name}"
                self._try_each_rule(recipe, samples[len(scores)], where=where)
                if num_losses == _MAX_LOSSES:
                    raise ScoringFailed(
                        f"The process that scores {where} was lost {num_losses} times "
                        f"({loss}), though each rule alone can score it. Is there "
                        "memory left? Lower reward.num_workers, or set it to 0."
                    ) from None
        return scores

    def stop(self) -> None:
        """End the process, and let no other follow."""
        with self._lock:
            self._is_stopped = True
            if self._child is not None:
                self._child.kill()

    def end(self) -> None:
        with self._lock:
            self._let_go()

    def _try_each_rule(self, recipe: Recipe, sample: Sample, *, where: str) -> None:
        for rule in recipe.rules:
            alone = Recipe(rules=(rule.model_copy(update={"weight": 1.0}),))
            try:
                self._ask(alone, [sample], into=[])
            except NoReply as loss:
                raise ScoringFailed(
                    f'Rule "{rule.name}" ({rule.kind}) cannot score {where}, which '
                    f"begins {sample.completion[:80]!r}: the process that does it was "
                    f"lost twice ({loss}). Take the rule out of the recipe, or the row "
                    "out of the data, and resume from the last checkpoint."
                ) from None

    def _ask(
        self, recipe: Recipe, samples: Sequence[Sample], *, into: list[Score]
    ) -> None:
        """Append a score for each sample, up to the one that the process is lost at."""
        child = self._running()
        self._wait_until_ready(child)
        seconds = _PATIENCE_SECONDS + sum(
            rule.params.get("timeout_seconds", 0.0) + GRACE_SECONDS
            for rule in recipe.rules
        )
        try:
            child.write(
                {
                    "recipe": recipe.model_dump(mode="json"),
                    "samples": [_fields(sample) for sample in samples],
                }
            )
            for sample in samples:
                found = child.read(timeout_seconds=seconds)["score"]
                # What a rule raised there, it raises here, with its traceback.
                into.append(
                    Score(**found) if found else score_completion(recipe, sample)
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


def _fields(sample: Sample) -> dict[str, object]:
    return {
        "prompt": sample.prompt,
        "completion": sample.completion,
        "answer": sample.answer,
        "columns": dict(sample.columns),
    }
