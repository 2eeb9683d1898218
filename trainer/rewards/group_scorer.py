"""Scoring the completions of a prompt by a recipe, for a run or for a past one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from trainer.rewards.batches import Batches, asks_others
from trainer.rewards.sample import Sample
from trainer.rewards.scoring import joined, judge, weigh
from trainer.rewards.spec import Recipe, RuleSpec, is_slow
from trainer.rewards.workers import Scored, Workers


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
