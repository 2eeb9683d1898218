"""Scoring with reasoning-gym's own scorers; runs in the judge's process."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import reasoning_gym

# Their scorers compare a board, which JSON has made lists of, with tuples.
_BOARD_TASKS = {"arc_agi", "rearc"}


def grade_puzzle(question: dict[str, Any]) -> dict[str, Any]:
    """`{"task", "entry", "answer"}` → `{"score"}` or `{"problem"}`.

    A scorer that fails on the answer but not on the entry's own answer was given
    a malformed answer: 0. One that fails on both was given a bad entry.
    """
    scorer = _scorer(question["task"])
    try:
        entry = _as_made(question["task"], question["entry"])
    except (KeyError, TypeError) as error:
        return _problem(error)
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
        return _problem(error)
    return {"score": 0.0}


def _problem(error: Exception) -> dict[str, Any]:
    return {"problem": f"{type(error).__name__}: {error}"[:200]}


def _as_made(task: str, entry: dict[str, Any]) -> dict[str, Any]:
    """The entry as the task made it, before it was JSON."""
    if task not in _BOARD_TASKS:
        return entry
    metadata = entry["metadata"]
    board = tuple(tuple(row) for row in metadata["output"])
    return entry | {"metadata": metadata | {"output": board}}


@lru_cache(maxsize=16)
def _scorer(task: str) -> Any:
    return reasoning_gym.get_score_answer_fn(task)
