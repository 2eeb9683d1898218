"""Tasks that write their own prompts, from the reasoning-gym package."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import threading
import tokenize
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cache
from io import StringIO
from typing import Any

from dashboard.datasets.row import Row
from dashboard.jobs.slots import slot
from dashboard.project.errors import UserError
from dashboard.project.subprocesses import bare_environment
from trainer.rewards.rules.reasoning_gym import REFUSED_TASKS

SIGNS = {"<=": "≤", ">=": "≥", "!=": "≠"}
LONGEST_BOUND = 80
# Of tasks whose package does not say what they are, or says it of another task.
SUMMARIES = {
    "ab": "Applies rewriting rules to a row of tokens such as A# #B until none fits",
    "acre": "Infers from observations which objects switch a detector on",
    "aiw": "Counts the siblings, friends or colleagues of a person",
    "arc_agi": "Infers the rule behind pairs of coloured grids and applies it",
    "bf": "Predicts the output of a Brainf*** program",
    "boxnet": "Plans how arms in the cells of a grid move boxes to their targets",
    "calendar_arithmetic": "Computes with dates, weekdays and leap years",
    "emoji_mystery": "Deciphers a sentence hidden in an emoji",
    "gsm_symbolic": "Grade-school word problems with varied names and numbers",
    "list_functions": "Infers the function behind pairs of lists and applies it",
    "number_format": "Picks the largest or smallest number among several notations",
    "puzzle24": "Makes 24 from four numbers by arithmetic",
    "rearc": "ARC puzzles generated from their rules",
    "string_manipulation": "Rewrites a string by rules until none applies",
    "survo": "Fills a grid with numbers so that rows and columns have given sums",
}
# The Countdown rule reads these columns.
LIFTED = {"countdown": ("numbers", "target")}
MAX_SECONDS = 60


def describe_options(config: type) -> list[dict[str, Any]]:
    """Options that are one number, word or switch, as the task's source explains them.

    Without size and seed, which each task has.
    """
    source = textwrap.dedent(inspect.getsource(config))
    # What is asserted of each field, where it is a comparison of plain values.
    bounds: dict[str, list[str]] = {}
    for node in ast.walk(_class(source)):
        if not isinstance(node, ast.Assert):
            continue
        tests = [node.test]
        if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And):
            tests = node.test.values
        for test in tests:
            names = _fields_compared(test)
            text = ast.unparse(test).replace("self.", "")
            text = re.sub("[<>!]=", lambda sign: SIGNS[sign.group()], text)
            if len(text) <= LONGEST_BOUND:
                for name in names:
                    bounds.setdefault(name, []).append(text)
    # The comments on any of a field's lines.
    remarks = {
        token.start[0]: token.string.lstrip("# ").rstrip(". ")
        for token in tokenize.generate_tokens(StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    comments = {}
    for node in _class(source).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            message = " ".join(remarks[line] for line in lines if line in remarks)
            if message:
                comments[node.target.id] = message[0].upper() + message[1:]
    return [
        {
            "name": field.name,
            "default": field.default,
            "help": comments.get(field.name, ""),
            "bounds": ", ".join(bounds.get(field.name, ())),
        }
        for field in dataclasses.fields(config)
        if field.name not in ("size", "seed")
        and isinstance(field.default, bool | int | float | str)
    ]


def _fields_compared(test: ast.expr) -> list[str]:
    """List the fields of a comparison; none if it compares anything else."""
    if not isinstance(test, ast.Compare):
        return []
    if any(isinstance(sign, ast.Is | ast.IsNot) for sign in test.ops):
        return []
    sides = [test.left, *test.comparators]
    names = [side.attr for side in sides if isinstance(side, ast.Attribute)]
    plain = all(isinstance(side, ast.Attribute) or _is_literal(side) for side in sides)
    return names if plain else []


def _is_literal(side: ast.expr) -> bool:
    try:
        ast.literal_eval(side)
    except ValueError:
        return False
    return True


def _class(source: str) -> ast.ClassDef:
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    return definition


class GeneratorsMissing(ValueError):
    """reasoning-gym is not installed, as in the web image, or does not start."""

    code = "datasets.generators_missing"


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
            kind[str] = "text without NUL characters"
            raise UserError(
                "datasets.invalid_option",
                f"{self.name} must be {kind[type(self.default)]}; got {text[:60]!r}.",
            ) from None

    @staticmethod
    def _kept(value: int | float | str) -> int | float | str:
        """Return the value; ValueError when no database keeps it."""
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
        *described, last = [*_run_child({})] or [{}]
    if "done" not in last:
        raise GeneratorsMissing(
            "The reasoning-gym package, which provides the tasks, failed to start. "
            "Check the free memory of the server, then reload."
        )
    return tuple(
        Task(
            reply["task"],
            SUMMARIES.get(reply["task"]) or reply["summary"],
            tuple(Option(**option) for option in reply["options"]),
        )
        for reply in described
    )


@cache
def example_rows(task: str, count: int) -> tuple[Row, ...]:
    """Generate rows with the default options and seed 0."""
    with slot():
        return tuple(generate_rows(task, size=count, seed=0))


def generate_rows(
    task: str, *, size: int, seed: int, options: dict[str, Any] | None = None
) -> Generator[Row, None, None]:
    """`size` rows; ValueError when the task refuses the options or takes too long."""
    rows = {"task": task, "size": size, "seed": seed, "options": options or {}}
    num_rows = 0
    reply: dict[str, Any] = {}
    for reply in _run_child({"rows": rows}):
        if "entry" in reply:
            num_rows += 1
            entry = reply["entry"]
            answer = entry["answer"]
            lifted = {name: entry["metadata"][name] for name in LIFTED.get(task, ())}
            yield Row(
                prompt=entry["question"],
                answer=answer
                if answer is None or isinstance(answer, str)
                else str(answer),
                columns={"task": task, "entry": entry, **lifted},
            )
    if "refused" in reply:
        raise UserError(
            "datasets.invalid_options",
            f"{task} failed at row {num_rows + 1:,} with these options: "
            f"{reply['refused']}. Change the options, or use the defaults.",
        )
    if "done" not in reply:
        raise UserError(
            "datasets.generation_timed_out",
            f"{task} generated {num_rows:,} of {size:,} rows, then exceeded "
            f"{MAX_SECONDS} s or its memory limit. Request fewer rows or easier "
            "options.",
        )


def _run_child(question: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the child's replies, until it is done or its time is up."""
    if importlib.util.find_spec("reasoning_gym") is None:
        raise GeneratorsMissing(
            "The reasoning-gym package, which provides the tasks, is not installed. "
            "Install cohort[engine] for the web process, or upload a file."
        )
    with tempfile.TemporaryFile() as request:
        request.write(json.dumps({"seconds": MAX_SECONDS, **question}).encode())
        request.seek(0)
        # reasoning-gym imports matplotlib, which keeps a font cache between starts.
        fonts = f"{tempfile.gettempdir()}/cohort-generator-{os.getuid()}"
        with subprocess.Popen(
            [sys.executable, "-m", "dashboard.datasets.generator_process"],
            stdin=request,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=tempfile.gettempdir(),
            env=bare_environment()
            | {"MPLCONFIGDIR": fonts, "OPENBLAS_NUM_THREADS": "1"},
        ) as child:
            alarm = threading.Timer(MAX_SECONDS, child.kill)
            alarm.start()
            try:
                assert child.stdout is not None
                for line in child.stdout:
                    if not line.endswith(b"\n"):
                        return  # ended in the middle of a line
                    yield json.loads(line)
            finally:
                alarm.cancel()
                child.kill()
