"""The child behind `trainer.rewards.judge`: one library, one question at a time."""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Callable
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
        grade = _load(library)
    except ImportError as error:
        send(replies, {"problem": f"The package {library} cannot be used: {error}."})
        return 1
    # Not sooner: py3langid unpacks its model into a file that nobody else sees.
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES, _MAX_FILE_BYTES))
    send(replies, {"problem": None})
    for request in questions():
        # The default action of the alarm ends the process, whatever it is doing,
        # also when nobody is left who waits for the reply.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, request["timeout_seconds"])
        reply = grade(request["question"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        send(replies, reply)
    return 0


def _load(library: str) -> Grade:
    # Each import costs up to seconds, and only one of them is needed.
    if library == "math_verify":
        from trainer.rewards.math_grading import (  # noqa: PLC0415 - see above
            grade_math,
        )

        return grade_math
    if library == "py3langid":
        from trainer.rewards.language_grading import (  # noqa: PLC0415 - see above
            grade_language,
        )

        return grade_language
    from trainer.rewards.puzzle_grading import (  # noqa: PLC0415 - see above
        grade_puzzle,
    )

    return grade_puzzle


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
