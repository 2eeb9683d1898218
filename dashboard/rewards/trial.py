"""Scoring for a page: in a process of its own, within a time, whatever is scored.

A web process lends its threads to everybody, and a rule may compute for seconds or ask
a grader that hangs. The child is the kernel's to end when the time is over.
"""

from __future__ import annotations

import atexit
import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.rewards.child import Child, NoReply
from trainer.rewards.judge import START_SECONDS
from trainer.rewards.sample import Sample
from trainer.rewards.scoring import Score
from trainer.rewards.spec import Recipe

NUM_PROCESSES = 2  # of each web process
NO_TIME = "The time for one look was over. Score fewer completions at once."
BUSY = "Others are scoring at the moment. Change something to try again."


@dataclass(frozen=True, slots=True)
class Trial:
    """A completion's score, and what it took; or why there is none."""

    score: Score | None
    seconds: float = 0.0
    rule_seconds: dict[str, float] = field(default_factory=dict)
    problem: str = ""


def try_samples(
    recipe: Recipe, samples: Sequence[Sample], *, seconds: float
) -> list[Trial]:
    """A trial of each, in order; those for which no time was left say so."""
    if not samples:
        return []
    deadline = time.monotonic() + seconds
    try:
        process = _idle.get(timeout=max(0.0, seconds))
    except queue.Empty:
        return [Trial(None, problem=BUSY)] * len(samples)
    try:
        return process.score(recipe, samples, deadline=deadline)
    finally:
        _idle.put(process)


class _Process:
    """A child, or its successor. For one thread at a time."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def score(
        self, recipe: Recipe, samples: Sequence[Sample], *, deadline: float
    ) -> list[Trial]:
        trials: list[Trial] = []
        try:
            child, waited = self._running()
            deadline += waited  # starting it is no fault of what is scored
            left = deadline - time.monotonic()
            if left > 0:
                child.write(_question(recipe, samples, seconds=left))
            while len(trials) < len(samples):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                trials.append(_trial(child.read(timeout_seconds=left)))
        except NoReply as loss:
            is_late = time.monotonic() >= deadline
            said = NO_TIME if is_late else f"Its scoring process was lost: {loss}."
            trials.append(Trial(None, problem=said))
        if len(trials) < len(samples) or trials[-1].problem:
            self.end()  # with replies that nobody waits for any more
        missing = len(samples) - len(trials)
        return trials + [Trial(None, problem=NO_TIME)] * missing

    def _running(self) -> tuple[Child, float]:
        if self._child is not None and self._child.is_alive():
            return self._child, 0.0
        self.end()
        begin = time.monotonic()
        self._child = Child("trainer.rewards.trial_process")
        self._child.read(timeout_seconds=START_SECONDS)
        return self._child, time.monotonic() - begin

    def end(self) -> None:
        if self._child is not None:
            self._child.end()
        self._child = None


def _question(
    recipe: Recipe, samples: Sequence[Sample], *, seconds: float
) -> dict[str, Any]:
    return {
        "recipe": recipe.model_dump(mode="json"),
        "seconds": seconds,
        "samples": [
            {
                "prompt": sample.prompt,
                "completion": sample.completion,
                "answer": sample.answer,
                "columns": dict(sample.columns),
            }
            for sample in samples
        ],
    }


def _trial(reply: dict[str, Any]) -> Trial:
    if "problem" in reply:
        return Trial(None, problem=reply["problem"])
    return Trial(Score(**reply["score"]), reply["seconds"], reply["rule_seconds"])


_processes = [_Process() for _ in range(NUM_PROCESSES)]
_idle: queue.LifoQueue[_Process] = queue.LifoQueue()  # the last one used is running
for _each in _processes:
    _idle.put(_each)


def _end_all() -> None:
    for process in _processes:
        process.end()


atexit.register(_end_all)
