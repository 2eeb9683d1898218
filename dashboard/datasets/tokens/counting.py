"""How long prompts are in a model's tokens. The engine counts, in its own process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO

from dashboard.datasets.row import Row
from dashboard.project.environment import ROOT

MAX_SECONDS = 600
SHOWN_CHARS = 400


class Uncountable(Exception):
    """Why there are no token lengths, and what to do."""


def count_tokens(model: str, rows: Iterable[Row]) -> Counter[int]:
    """How many rows have which length, as a run with default settings renders them."""
    # Into files: what is not read from a pipe would stop the child.
    with (
        TemporaryFile("w+", encoding="utf-8") as counts,
        TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
    ):
        code = _run(model, rows, counts, errors)
        counts.seek(0)
        errors.seek(0)
        if code != 0:
            raise Uncountable(_explain(model, code, errors.read()))
        return Counter(int(line) for line in counts)


def _run(model: str, rows: Iterable[Row], counts: IO[str], errors: IO[str]) -> int:
    command = [sys.executable, "-m", "trainer", "tokens", "--model", model]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=counts,
        stderr=errors,
        encoding="utf-8",
    ) as child:
        assert child.stdin
        # One that hangs over a hub it cannot reach must not keep the worker.
        timer = threading.Timer(MAX_SECONDS, child.kill)
        timer.start()
        try:
            # Where it has ended early, its code and its errors tell why.
            with suppress(BrokenPipeError):
                for row in rows:
                    child.stdin.write(row.canonical() + "\n")
                child.stdin.close()
            return child.wait()
        finally:
            timer.cancel()
            child.kill()
            with suppress(BrokenPipeError):
                child.stdin.close()


def _explain(model: str, code: int, errors: str) -> str:
    if "ModuleNotFoundError" in errors:
        return (
            "This worker has no training engine, whose tokenizers count the tokens. "
            "Start a worker for the queue “default” where the engine is installed."
        )
    if -code in (signal.SIGALRM, signal.SIGPROF):  # timers of its own
        return (
            f"The tokenizer of {model} took longer than it may to load, or for one "
            "prompt. Check its files and its chat template, or choose another model."
        )
    if code < 0:
        return (
            f"The tokenizer of {model} was ended after {MAX_SECONDS // 60} minutes, or "
            "when memory ran out. Try a model whose files lie on this machine."
        )
    last = errors.strip().splitlines()[-1:] or [f"it ended with code {code}"]
    return f"The tokenizer of {model} counted nothing: {last[0][:SHOWN_CHARS]}"
