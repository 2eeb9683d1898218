"""Scoring with reasoning-gym's own scorers; runs in the judge's process."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import reasoning_gym


def grade_puzzle(question: dict[str, Any]) -> dict[str, Any]:
    """`{"task", "entry", "answer"}` → `{"score"}` or `{"problem"}`.

    A scorer that fails on the answer but not on the entry's own answer was given
    a malformed answer: 0. One that fails on both was given a bad entry.
    """
    scorer = _scorer(question["task"])
    entry = question["entry"]
    try:
        score = float(scorer(question["answer"], entry))
    except Exception:  # noqa: BLE001 - 96 foreign scorers; each failure is answered
        return _after_failure(scorer, entry)
    if not math.isfinite(score):
        return {"score": 0.0}
    return {"score": min(1.0, max(0.0, score))}


def _after_failure(scorer: Any, entry: dict[str, Any]) -> dict[str, Any]:
    try:
        scorer(entry["answer"], entry)
    except Exception as error:  # noqa: BLE001 - as above
        return {"problem": f"{type(error).__name__}: {error}"[:200]}
    return {"score": 0.0}


@lru_cache(maxsize=16)
def _scorer(task: str) -> Any:
    return reasoning_gym.get_score_answer_fn(task)
