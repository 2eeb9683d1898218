"""Tasks that write their own prompts: of the reasoning-gym package, and tasksets of
verifiers, which an operator installs.
"""

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
import tempfile
import textwrap
import time
import tokenize
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cache
from io import StringIO
from typing import Any

from django.conf import settings

from dashboard.datasets.row import Row
from dashboard.datasets.tokenizer_pool import refuse_environment, without_code
from dashboard.jobs.slots import slot
from dashboard.project.database import clean_json
from dashboard.project.environment import hub_variables
from dashboard.project.errors import UserError
from dashboard.project.schema_forms import SchemaField, fields_of_schema
from dashboard.project.subprocesses import bare_environment
from trainer.config import CODE_OPTIONS
from trainer.rewards.child import Child, NoReply, TimedOut
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
JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
MAX_SECONDS = 60
MAX_REASON_CHARS = 500
# Facts for programmers, behind each of pydantic's messages.
_TYPE = re.compile(
    r" \[type=\w+, input_value=.*?, input_type=\w+\]"
    r"(?: For further information visit \S+)?"
)
# The threads of a Python that aborts, behind what it said before.
_DUMP = re.compile("^(?:Fatal Python error: |(?:Current thread|Thread) 0x)", re.M)
# Versions of tasksets by name, without the import of verifiers, which takes 7 s. The
# package of a taskset requires verifiers.
_LISTING = """
import json
from importlib.metadata import distributions
from importlib.util import find_spec
from pkgutil import iter_modules

library = find_spec("verifiers")
folders = library.submodule_search_locations if library else ()
own = iter_modules([f"{folder}/v1/tasksets" for folder in folders])
versions = {module.name: "comes with verifiers" for module in own}
for package in distributions():
    if any(needed.startswith("verifiers") for needed in package.requires or ()):
        versions[package.name] = package.version
print(json.dumps(versions))
"""


def describe_options(config: type) -> dict[str, Any]:
    """Options that are one number, word or switch, as the task's source explains them:
    properties of a JSON schema. Without size and seed, which each task has.
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
    return {
        field.name: {
            "type": JSON_TYPES[type(field.default)],
            "title": field.name,
            "default": field.default,
            "description": "".join(
                f"{remark}. "
                for remark in (
                    comments.get(field.name),
                    ", ".join(bounds.get(field.name, ())),
                )
                if remark
            ).rstrip(),
        }
        for field in dataclasses.fields(config)
        if field.name not in ("size", "seed") and type(field.default) in JSON_TYPES
    }


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
class Task:
    name: str
    summary: str
    options: tuple[SchemaField, ...]
    is_taskset: bool = False

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
            fields_of_schema(reply),
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
    child = Child("dashboard.datasets.generator_process")
    child.write({"seconds": MAX_SECONDS, **question})
    yield from filter(None, _lines_of(child, seconds=MAX_SECONDS))


def _lines_of(
    child: Child, *, seconds: float
) -> Generator[dict[str, Any] | None, None, None]:
    """Yield what a child writes, and None for each second without."""
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            try:
                yield child.read(timeout_seconds=1.0)
            except TimedOut:
                yield None
    except NoReply:
        return
    finally:
        child.end()


def list_tasksets() -> dict[str, str]:
    """Return the version of each taskset; "": it is only allowed by name."""
    versions = dict.fromkeys(settings.TASKSETS - {"*"}, "")
    if os.access(settings.TASKSETS_PYTHON, os.X_OK):
        listed = subprocess.run(
            [settings.TASKSETS_PYTHON, "-c", _LISTING],
            capture_output=True,
            check=False,
            cwd=tempfile.gettempdir(),
            env=bare_environment(),
        )
        versions |= json.loads(listed.stdout or "{}")
    return versions


@cache
def open_taskset(taskset: str, version: str) -> Task:
    """Return a taskset, with its settings that are allowed; UserError if it fails."""
    environment = {"kind": "verifiers", "taskset": taskset}
    with slot():
        schema, *_ = filter(
            None, _run_taskset(environment, "--schema", seconds=MAX_SECONDS)
        )
    fields = [field for field in fields_of_schema(schema) if field.path != "id"]
    if "*" not in settings.TASKSETS:
        fields = [
            dataclasses.replace(field, default=without_code(field.default))
            for field in fields
            if field.path not in CODE_OPTIONS
        ]
    # Its own first, as what all tasksets have is seldom changed.
    options = sorted(fields, key=lambda field: field.path in ("system_prompt", "task"))
    return Task(taskset, "", tuple(options), is_taskset=True)


def taskset_rows(
    environment: dict[str, Any], *, size: int
) -> Generator[Row | None, None, None]:
    """Yield a taskset's first tasks as rows, and None for each second without one.

    UserError if the taskset fails.
    """
    for line in _run_taskset(environment, "--limit", str(size)):
        yield Row(**clean_json(line)) if line else None


def _run_taskset(
    environment: dict[str, Any], *arguments: str, seconds: float = math.inf
) -> Generator[dict[str, Any] | None, None, None]:
    """Yield what the engine's command writes, and None for each second without."""
    taskset, options = environment["taskset"], environment.get("options", {})
    if why := refuse_environment(environment):
        raise UserError("datasets.taskset_refused", why)
    with tempfile.TemporaryFile() as words:
        child = Child(
            *("trainer", "tasks", *arguments),
            *("--options", json.dumps(options), "--", taskset),
            environment=hub_variables()
            | {"COHORT_ENVIRONMENTS_PYTHON": settings.TASKSETS_PYTHON},
            stderr=words,
        )
        yield from _lines_of(child, seconds=seconds)
        if child.exit_code != 0:
            words.seek(0)
            said = words.read().decode(errors="replace").strip()
            said = _DUMP.split(said)[0].strip() or said.partition("\n")[0]
            # Without a traceback's frames, which are indented.
            last = " ".join(re.split(r"\n(?=\S)", said)[-1].split()) or "out of time"
            last = _TYPE.sub("", last)
            raise UserError(
                "datasets.taskset_failed",
                f"{taskset} failed: {last[:MAX_REASON_CHARS]}",
            )
