"""Tasks that write their own prompts, from the reasoning-gym package."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

from dashboard.datasets.rows import Row

# One mixes others, the other runs code snippets that it carries.
LEFT_OUT = frozenset({"composite", "codeio"})
# The Countdown rule reads these columns.
LIFTED = {"countdown": ("numbers", "target")}
MAX_SECONDS = 60.0


class GeneratorsMissing(Exception):
    """The package is not installed; the web image comes without it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    name: str
    summary: str


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """A setting of a task that is one number, word or switch."""

    name: str
    default: bool | int | float | str

    def parse(self, text: str) -> bool | int | float | str:
        try:
            if isinstance(self.default, bool):
                return {"true": True, "false": False}[text.lower()]
            return type(self.default)(text)
        except (KeyError, ValueError):
            kind = {bool: "true or false", int: "a whole number", float: "a number"}
            raise ValueError(
                f"{self.name} must be {kind[type(self.default)]}; got {text!r}."
            ) from None


@cache
def list_tasks() -> list[Task]:
    return sorted(
        (
            Task(name, _summary(dataset))
            for name, (dataset, _) in _registry().items()
            if name not in LEFT_OUT
        ),
        key=lambda task: task.name,
    )


def _summary(dataset: type) -> str:
    text = inspect.getdoc(dataset) or ""
    first = text.strip().split("\n\n")[0]
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    return plain.removesuffix(".")


def list_options(task: str) -> list[Option]:
    """The task's settings that a form can ask for, without size and seed."""
    _, config = _registry()[task]
    return [
        Option(field.name, field.default)
        for field in dataclasses.fields(config)
        if field.name not in ("size", "seed")
        and isinstance(field.default, bool | int | float | str)
    ]


def generate_rows(
    task: str, *, size: int, seed: int, options: dict[str, Any] | None = None
) -> Iterator[Row]:
    """`size` rows; ValueError when the options are refused or it takes too long."""
    deadline = time.monotonic() + MAX_SECONDS
    entries = _entries(task, size, seed, options or {})
    for number in range(size):
        yield _row(task, _one(task, entries, number))
        if time.monotonic() > deadline:
            raise ValueError(
                f"{task} made {number + 1:,} of {size:,} rows in {MAX_SECONDS:.0f} s. "
                "Ask for fewer rows."
            )


def _entries(task: str, size: int, seed: int, options: dict[str, Any]) -> Any:
    gym = _package()
    try:
        return gym.create_dataset(task, size=size, seed=seed, **options)
    except (AssertionError, ValueError, TypeError) as error:
        raise ValueError(
            f"{task} refuses these options: {error or 'out of bounds'}. Change them, "
            "or go back to the defaults."
        ) from error


def _one(task: str, entries: Any, number: int) -> dict[str, Any]:
    try:
        entry: dict[str, Any] = entries[number]
    except Exception as error:
        raise ValueError(
            f"{task} could not make row {number + 1}: {error}. Try other options or "
            "another seed."
        ) from error
    return entry


def _row(task: str, entry: dict[str, Any]) -> Row:
    # Scorers read the entry again, so it travels whole, as JSON can say it.
    kept = json.loads(json.dumps(_plain(entry), default=str))
    answer = kept["answer"]
    lifted = {name: kept["metadata"][name] for name in LIFTED.get(task, ())}
    return Row(
        prompt=kept["question"],
        answer=answer if answer is None or isinstance(answer, str) else str(answer),
        columns={"task": task, "entry": kept, **lifted},
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else str(key): _plain(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(inner) for inner in value), key=str)
    # NumPy's scalars know their Python value.
    return value.item() if hasattr(value, "item") else value


def _registry() -> dict[str, tuple[type, type]]:
    _package()
    registry: dict[str, tuple[type, type]] = importlib.import_module(
        "reasoning_gym.factory"
    ).DATASETS
    return registry


def _package() -> Any:
    # Imported when first used: it takes a second, and not every web image has it.
    try:
        return importlib.import_module("reasoning_gym")
    except ImportError:
        raise GeneratorsMissing(
            "This server has no reasoning-gym package, which the tasks come from. "
            "Install cohort[engine] beside the web process, or upload a file."
        ) from None
