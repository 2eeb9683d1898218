"""Tasks that write their own prompts, from the reasoning-gym package."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from dashboard.datasets.generators.sentences import SENTENCES
from dashboard.datasets.row import Row
from dashboard.project.slots import slot
from dashboard.project.subprocesses import bare_environment
from trainer.rewards.rules.reasoning_gym import REFUSED_TASKS

# The Countdown rule reads these columns.
LIFTED = {"countdown": ("numbers", "target")}
MAX_SECONDS = 60


class GeneratorsMissing(ValueError):
    """The package is not here, as in the web image, or does not start."""


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of a task that is one number, word or switch."""

    name: str
    default: bool | int | float | str
    help: str = ""
    bounds: str = ""  # "max_terms ≥ min_terms"

    @property
    def text(self) -> str:
        default = self.default
        return str(default).lower() if isinstance(default, bool) else str(default)

    def parse(self, text: str) -> bool | int | float | str:
        try:
            if isinstance(self.default, bool):
                return {"true": True, "false": False}[text.strip().lower()]
            return self._kept(type(self.default)(text))
        except (KeyError, ValueError):
            kind = {bool: "true or false", int: "a whole number", float: "a number"}
            kind[str] = "a text without NUL"
            raise ValueError(
                f"{self.name} must be {kind[type(self.default)]}; got {text[:60]!r}."
            ) from None

    @staticmethod
    def _kept(value: int | float | str) -> int | float | str:
        """The value; ValueError when no database keeps it."""
        is_finite = not isinstance(value, float) or math.isfinite(value)
        if not is_finite or (isinstance(value, str) and "\x00" in value):
            raise ValueError(value)
        return value


@dataclass(frozen=True, slots=True)
class Task:
    name: str
    summary: str
    options: tuple[Option, ...]

    @property
    def scorer_note(self) -> str:
        """Why the task's own scorer is not a rule; empty when it is one."""
        return REFUSED_TASKS.get(self.name, "")


@cache
def list_tasks() -> tuple[Task, ...]:
    with slot():
        *described, last = [*_ask({})] or [{}]
    if "done" not in last:
        raise GeneratorsMissing(
            "The reasoning-gym package, which the tasks come from, could not be "
            "started. Check that there is memory for it, then reload."
        )
    return tuple(
        Task(
            reply["task"],
            SENTENCES.get(reply["task"]) or reply["summary"],
            tuple(Option(**option) for option in reply["options"]),
        )
        for reply in described
    )


@cache
def example_rows(task: str, count: int) -> tuple[Row, ...]:
    """With the default options and seed 0."""
    with slot():
        return tuple(generate_rows(task, size=count, seed=0))


def generate_rows(
    task: str, *, size: int, seed: int, options: dict[str, Any] | None = None
) -> Generator[Row, None, None]:
    """`size` rows; ValueError when the task refuses the options or takes too long."""
    rows = {"task": task, "size": size, "seed": seed, "options": options or {}}
    num_rows = 0
    reply: dict[str, Any] = {}
    for reply in _ask({"rows": rows}):
        if "entry" in reply:
            num_rows += 1
            yield _row(task, reply["entry"])
    if "refused" in reply:
        raise ValueError(
            f"{task} refuses these options at row {num_rows + 1:,}: "
            f"{reply['refused']}. Change them, or go back to the defaults."
        )
    if "done" not in reply:
        raise ValueError(
            f"{task} made {num_rows:,} of {size:,} rows, then its {MAX_SECONDS} s or "
            "its memory were used up. Ask for fewer rows or easier options."
        )


def _row(task: str, entry: dict[str, Any]) -> Row:
    answer = entry["answer"]
    lifted = {name: entry["metadata"][name] for name in LIFTED.get(task, ())}
    return Row(
        prompt=entry["question"],
        answer=answer if answer is None or isinstance(answer, str) else str(answer),
        columns={"task": task, "entry": entry, **lifted},
    )


def _ask(question: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What the child answers, until it is done or its time is up."""
    if importlib.util.find_spec("reasoning_gym") is None:
        raise GeneratorsMissing(
            "This server has no reasoning-gym package, which the tasks come from. "
            "Install cohort[engine] beside the web process, or upload a file."
        )
    with tempfile.TemporaryFile() as asked:
        asked.write(json.dumps({"seconds": MAX_SECONDS, **question}).encode())
        asked.seek(0)
        with subprocess.Popen(
            [sys.executable, "-m", "dashboard.datasets.generators.process"],
            stdin=asked,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=tempfile.gettempdir(),
            env=_environment(),
        ) as child:
            alarm = threading.Timer(MAX_SECONDS, child.kill)
            alarm.start()
            try:
                assert child.stdout is not None
                yield from _replies(child.stdout)
            finally:
                alarm.cancel()
                child.kill()


def _environment() -> dict[str, str]:
    # reasoning-gym imports matplotlib, which keeps a font cache between starts.
    fonts = f"{tempfile.gettempdir()}/cohort-generator-{os.getuid()}"
    return bare_environment() | {"MPLCONFIGDIR": fonts, "OPENBLAS_NUM_THREADS": "1"}


def _replies(lines: Any) -> Iterator[dict[str, Any]]:
    for line in lines:
        if not line.endswith(b"\n"):
            return  # ended in the middle of a line
        yield json.loads(line)
