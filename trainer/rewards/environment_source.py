"""A user's source of tools, or of an environment: its contents, and calls of it.

Only a sandbox runs it; what comes back is untrusted.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from trainer.rewards.rule import quote
from trainer.rewards.rules.python_function import imported_packages
from trainer.rewards.sandbox import pool
from trainer.rewards.sandbox.levels import packages_here
from trainer.rewards.sandbox.limits import MAX_CALL_SECONDS, Limits
from trainer.rewards.sandbox.slot import CallFailed, result_of

MAX_CHARS = 20_000
_CONTENTS_SECONDS = 10.0


class Signature(BaseModel):
    """The parameters of a function, or the error where they cannot be read."""

    doc: str = ""
    parameters: dict[str, bool] = {}  # whether it is required
    unnamed: list[str] = []  # parameters that cannot be given by name
    hints: dict[str, Any] = {}  # a type's name, and a list of those in its brackets
    error: str = ""


BUILT_IN_TOOLS = {
    "calculator": Signature(
        doc="""Computes an arithmetic expression exactly.

        Args:
            expression: Numbers, + - * / ** and parentheses.""",
        parameters={"expression": True},
        hints={"expression": ("str", [])},
    ),
    "python": Signature(
        doc="""Runs a Python program and returns what it prints.

        Args:
            code: The program. It has no network, no files and no earlier variables.""",
        parameters={"code": True},
        hints={"code": ("str", [])},
    ),
}


class EnvironmentCode(BaseModel):
    """A function `reply`, or a class with `reset` and either `step` or tools."""

    has_open: bool
    tools: dict[str, Signature]


class Contents(BaseModel):
    """The public functions and the environments that a source defines, by name."""

    functions: dict[str, Signature]
    environments: dict[str, EnvironmentCode]


Reply = TypeVar("Reply", bound=BaseModel)


@lru_cache(maxsize=64)
def contents_of(source: str, packages: tuple[str, ...] = ()) -> Contents:
    """Return what a source defines, as running it in a sandbox shows.

    Raises:
        ValueError: it is too long, or does not run.
        SandboxFailed: no sandbox can be had.
    """
    if len(source) > MAX_CHARS:
        raise ValueError(
            f"The source has {len(source):,} characters; the limit is {MAX_CHARS:,}."
        )
    question = {"source": source}
    try:
        return ask("contents", question, Contents, packages, seconds=_CONTENTS_SECONDS)
    except CallFailed as failure:
        raise ValueError(f"The source {failure}.") from failure


def ask(
    kind: Literal["contents", "tool", "environment"],
    question: dict[str, Any],
    model: type[Reply],
    packages: tuple[str, ...],
    *,
    seconds: float,
) -> Reply:
    """Return the reply to a call, in a sandbox with these packages.

    Raises:
        CallFailed: by the fault of the source.
        SandboxFailed: by no fault of its own.
    """
    limits = Limits(wall_seconds=min(seconds, MAX_CALL_SECONDS))
    answer = pool.ask(kind, [question], limits, packages=packages)
    try:
        return model.model_validate(result_of(answer, limits))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(map(str, fault["loc"]))
        raise CallFailed(
            f"returned {quote(fault['input'])} as {where}: {fault['msg']}"
        ) from error


def packages_of(source: str, packages: Collection[str]) -> tuple[str, ...]:
    """Return the packages of a source's sandbox: those named, and those it imports.

    Raises:
        ValueError: one that is named cannot be had.
        SandboxFailed: no sandbox can be had.
    """
    offered = packages_here(pool.sandbox_level())
    for name in packages:
        if name not in offered:
            raise ValueError(
                f'The sandbox has no package "{name}". It has {", ".join(offered)}.'
            )
    return tuple(sorted({*packages, *imported_packages(source)}))
