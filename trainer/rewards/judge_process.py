"""The child process of `trainer.rewards.judge`: one library, one question at a time.

A grader imports its library when it is made: an import takes up to seconds, and a child
needs one.
"""

from __future__ import annotations

import math
import resource
import signal
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from trainer.rewards.child import questions, send, take_over_stdout

Grade = Callable[[dict[str, Any]], dict[str, Any]]
# Address space, of which the libraries themselves map about 1 GB.
_MAX_BYTES = 4 * 1024**3
_MAX_FILE_BYTES = 64 * 1024**2


def main(library: str) -> int:
    """Answer questions from standard input until it ends."""
    replies = take_over_stdout()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))
    try:
        grade = _GRADERS[library]()
    except ImportError as error:
        send(replies, {"problem": f"Cannot use the package {library}: {error}."})
        return 1
    # Not sooner: py3langid unpacks its model into a file that no one else sees.
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES, _MAX_FILE_BYTES))
    send(replies, {"problem": None})
    for request in questions():
        # The default action of the alarm ends the process, whatever it is doing,
        # also when no one is left who waits for the reply.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, request["timeout_seconds"])
        reply = grade(request["question"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        send(replies, reply)
    return 0


def _math_verify() -> Grade:
    from trainer.rewards.math_grader import grade  # noqa: PLC0415 - see the module

    return grade


class _LanguageIdentifier:
    """Identifies the languages of texts."""

    def __init__(self) -> None:
        from py3langid.langid import (  # noqa: PLC0415 - see the module
            MODEL_FILE,
            LanguageIdentifier,
        )

        self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE)

    def __call__(self, question: dict[str, Any]) -> dict[str, Any]:
        """`{"texts"}` → `{"languages"}`: the code of each text's, such as en."""
        languages = [self._identifier.classify(text) for text in question["texts"]]
        return {"languages": [str(language) for language, _ in languages]}


class _PuzzleScorer:
    """Scores answers by reasoning-gym's own scorers."""

    # They compare a board, which JSON has made lists of, with tuples.
    _BOARD_TASKS = frozenset({"arc_agi", "rearc"})

    def __init__(self) -> None:
        import reasoning_gym  # noqa: PLC0415 - see the module

        self._scorer = lru_cache(maxsize=16)(reasoning_gym.get_score_answer_fn)

    def __call__(self, question: dict[str, Any]) -> dict[str, Any]:
        """`{"task", "entry", "answer"}` → `{"score"}` or `{"problem"}`.

        A scorer that fails on the answer but not on the entry's own answer was given
        a malformed answer: 0. One that fails on both was given a bad entry.
        """
        scorer = self._scorer(question["task"])
        try:
            entry = self._as_made(question["task"], question["entry"])
        except (KeyError, TypeError) as error:
            return _problem(error)
        try:
            score = float(scorer(question["answer"], entry))
        except Exception:  # noqa: BLE001 - 96 foreign scorers; each failure is answered
            return self._after_failure(scorer, entry)
        if not math.isfinite(score):
            return {"score": 0.0}
        return {"score": min(1.0, max(0.0, score))}

    def _after_failure(self, scorer: Any, entry: dict[str, Any]) -> dict[str, Any]:
        try:
            scorer(entry["answer"], entry)
        except Exception as error:  # noqa: BLE001 - as above
            return _problem(error)
        return {"score": 0.0}

    def _as_made(self, task: str, entry: dict[str, Any]) -> dict[str, Any]:
        """Return the entry as the task made it, before it was JSON."""
        if task not in self._BOARD_TASKS:
            return entry
        metadata = entry["metadata"]
        board = tuple(tuple(row) for row in metadata["output"])
        return entry | {"metadata": metadata | {"output": board}}


def _problem(error: Exception) -> dict[str, Any]:
    return {"problem": f"{type(error).__name__}: {error}"[:200]}


_GRADERS: dict[str, Callable[[], Grade]] = {
    "math_verify": _math_verify,
    "py3langid": _LanguageIdentifier,
    "reasoning_gym": _PuzzleScorer,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
