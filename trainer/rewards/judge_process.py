"""The child process of `trainer.rewards.judge`: one library, one question at a time.

A grader imports its library when it is made: an import takes up to seconds, and a child
needs one.
"""

from __future__ import annotations

import logging
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


class _MathVerify:
    """Compares mathematical answers."""

    def __init__(self) -> None:
        import re2  # noqa: PLC0415 - see the module
        from latex2sympy2_extended import (  # noqa: PLC0415 - see the module
            NormalizationConfig,
        )
        from math_verify import (  # noqa: PLC0415 - see the module
            ExprExtractionConfig,
            LatexExtractionConfig,
            parse,
            verify,
        )

        self._parse, self._verify = parse, verify
        # Four letters in a row that are no LaTeX command.
        self._word = re2.compile(r"(?:^|[^\\a-zA-Z])[a-zA-Z]{4,}")
        self._targets = (LatexExtractionConfig(), ExprExtractionConfig())
        # Open R1 reads LaTeX alone, between marks, and mends no malformed operator.
        self._published_targets = (
            LatexExtractionConfig(
                try_extract_without_anchor=False,
                boxed_match_priority=0,
                normalization_config=NormalizationConfig(
                    basic_latex=True,
                    units=True,
                    malformed_operators=False,
                    nits=False,
                    boxed="all",
                    equations=True,
                ),
            ),
        )
        logging.disable(logging.CRITICAL)

    def __call__(self, question: dict[str, Any]) -> dict[str, Any]:
        """`{"reference", "text", "is_bare", "as_published"}` → `{"is_readable", …}`.

        `is_bare`: the text is an answer alone, not a completion that holds one
        somewhere. The reply holds `is_readable` (the reference) and `is_right` (the
        text).

        math-verify's own timeout is a signal handler, which fails outside the main
        thread and cannot interrupt C code; ours is the judge's alarm, so it is off.
        """
        text, reference = question["text"], question["reference"]
        if question.get("as_published"):
            gold = self._read_first(reference, self._targets)
            found = self._read_first(text, self._published_targets)
        else:
            gold = self._read_bare(reference)
            found = self._read_bare(text) if question["is_bare"] else self._read(text)
        is_right = bool(gold and found) and self._verify(
            gold, found, timeout_seconds=None
        )
        return {"is_readable": bool(gold), "is_right": bool(is_right)}

    def _read_bare(self, text: str) -> list[Any]:
        """Without dollar signs x^2+1 would read as 1; with them, Paris as a product."""
        has_marks = any(mark in text for mark in ("$", "\\boxed", "\\(", "\\["))
        if has_marks or self._word.search(text):
            return self._read(text)
        return self._read(f"${text}$") or self._read(text)

    def _read(self, text: str) -> list[Any]:
        parsed: list[Any] = self._parse(
            text,
            extraction_config=self._targets,
            parsing_timeout=None,
            raise_on_error=False,
        )
        return parsed

    def _read_first(self, text: str, targets: tuple[Any, ...]) -> list[Any]:
        parsed: list[Any] = self._parse(
            text,
            extraction_config=targets,
            extraction_mode="first_match",
            parsing_timeout=None,
            raise_on_error=False,
        )
        return parsed


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
        found = [self._identifier.classify(text) for text in question["texts"]]
        return {"languages": [str(language) for language, _ in found]}


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
        """The entry as the task made it, before it was JSON."""
        if task not in self._BOARD_TASKS:
            return entry
        metadata = entry["metadata"]
        board = tuple(tuple(row) for row in metadata["output"])
        return entry | {"metadata": metadata | {"output": board}}


def _problem(error: Exception) -> dict[str, Any]:
    return {"problem": f"{type(error).__name__}: {error}"[:200]}


_GRADERS: dict[str, Callable[[], Grade]] = {
    "math_verify": _MathVerify,
    "py3langid": _LanguageIdentifier,
    "reasoning_gym": _PuzzleScorer,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
