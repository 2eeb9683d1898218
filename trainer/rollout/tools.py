"""Tools that a policy calls between its turns, and environments that users write.

Users' code, and a policy's, runs in a sandbox that keeps nothing between calls.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, update_wrapper
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypeVar, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)
from transformers.utils.chat_template_utils import get_json_schema

from trainer.data import Row
from trainer.events import MAX_NUMBER
from trainer.rewards.judge import seconds_left
from trainer.rewards.numbers import ArithmeticRefused, compute
from trainer.rewards.rule import Message, answers_of, quote, replace_surrogates, shown
from trainer.rewards.rules.equations import as_arithmetic
from trainer.rewards.rules.python_function import imported_packages, valid_metrics
from trainer.rewards.sandbox import pool
from trainer.rewards.sandbox.inside.calls import MAX_RESULT_CHARS
from trainer.rewards.sandbox.levels import packages_here
from trainer.rewards.sandbox.limits import MAX_CALL_SECONDS, Limits
from trainer.rewards.sandbox.slot import Answer, CallFailed, how_it_ended, result_of
from trainer.rollout.environments import MAX_CALLS, EnvironmentFailed, Reply, Said
from trainer.seeding import derive
from trainer.tokenizers import first_line
from trainer.types import ToolCall

_MAX_NAME_CHARS = 80  # of a tool that a policy made up
# 2,000 of them can be fractions that take a second to add.
_MAX_EXPRESSION_CHARS = 500
_NO_OUTPUT = "The program printed nothing."
_CONTENTS_SECONDS = 10.0


def calculate(expression: str) -> str:
    """Return the exact value: a whole number, or a fraction.

    >>> calculate("(1 + 2) / 4")
    '3/4'

    Raises:
        CallFailed: it has none.
    """
    if len(expression) > _MAX_EXPRESSION_CHARS:
        raise CallFailed(f"takes at most {_MAX_EXPRESSION_CHARS} characters")
    try:
        return str(compute(as_arithmetic(expression), as_python=True).value)
    except (ArithmeticRefused, ValueError) as error:
        # A ValueError: it has more digits than Python writes.
        why = error if isinstance(error, ArithmeticRefused) else "it is too long"
        raise CallFailed(f"cannot compute {quote(expression)}: {why}") from error


class ToolEnvironment:
    """Runs the calls of a turn, one after another; a turn without calls is the last.

    A call that cannot be run has an error, which the policy reads.
    """

    def __init__(
        self,
        tools: Sequence[str],
        *,
        source: str = "",
        packages: Collection[str] = (),
        call_seconds: float = 10.0,
    ) -> None:
        """
        Args:
            tools: names of functions of the source, and of built-in tools.
            packages: what programs may import; a source also has what it imports.

        Raises:
            ValueError: a tool is not there, or cannot be described to a policy.
            EnvironmentFailed: the machine has no sandbox for them.
        """
        self.is_quick = not source and set(tools) <= {"calculator"}
        self._source, self._seconds = source, call_seconds
        self._packages = () if self.is_quick else packages_of(source, packages)
        contents = contents_of(source, self._packages) if source else Contents()
        self._functions = contents.functions
        self._names = tuple(tools)
        self.tools = definitions(tools, BUILT_IN_TOOLS | self._functions)

    def open(self, row: Row, seed: int) -> Sequence[Message]:
        return ()

    def reply(self, row: Row, seed: int, said: Sequence[Said]) -> Reply:
        calls = [
            self._answered(call, row, seed, draw=derive(seed, "call", len(said), n))
            for n, call in enumerate(said[-1].calls)
        ]
        return _reply_of(calls)

    def _answered(self, call: ToolCall, row: Row, seed: int, *, draw: int) -> ToolCall:
        """Args: draw: the seed of the random numbers of this call alone."""
        begin = time.monotonic()
        result, error = "", _fault(call, self._names)
        if not error:
            question = {"row": _fields(row), "seed": seed, "draw": draw}
            try:
                result = self._run(call.name, call.arguments, question)
            except CallFailed as failure:
                error = f"{call.name} {failure}"
        seconds = time.monotonic() - begin
        return replace(call, result=result, error=error, seconds=seconds)

    def _run(self, name: str, arguments: Any, question: dict[str, Any]) -> str:
        if name in self._functions:
            call = {"source": self._source, "name": name, "arguments": arguments}
            return ask(
                "tool", question | call, _Result, self._packages, seconds=self._seconds
            ).text
        (parameter,) = BUILT_IN_TOOLS[name].parameters
        text = arguments.get(parameter)
        if not isinstance(text, str) or len(arguments) > 1:
            raise CallFailed(f"takes {parameter}, a text; got {quote(arguments)}")
        return calculate(text) if name == "calculator" else self._run_program(text)

    def _run_program(self, code: str) -> str:
        question = {"source": code, "stdin": ""}
        answer, limits = _call("program", question, self._packages, self._seconds)
        printed = shown(answer.stdout[:MAX_RESULT_CHARS], answer.stdout_bytes)
        fault = how_it_ended(answer, limits)
        if fault is None:
            return printed or _NO_OUTPUT
        error = shown(answer.stderr, len(answer.stderr)).strip()
        if error and answer.code == 1:
            lines = re.findall(r'"<completion>", line (\d+)', error)
            where = f" (line {lines[-1]})" if lines else ""
            fault = f"failed: {error.splitlines()[-1]:.300}{where}"
        raise CallFailed(f"{fault}\nIt printed:\n{printed}" if printed else fault)


class PythonEnvironment:
    """A user's own: a function reply(row, seed, said), or a class with state.

    A class has `reset`, and `step` or, as TRL's environments, methods that are tools.
    Each reply makes an object of it, which plays the earlier turns again.
    """

    is_quick = False

    def __init__(
        self, source: str, *, packages: Collection[str] = (), call_seconds: float = 10.0
    ) -> None:
        """
        Raises:
            ValueError: the source is no environment, or a tool of it is none.
            EnvironmentFailed: the machine has no sandbox for it.
        """
        self._source, self._seconds = source, call_seconds
        self._packages = packages_of(source, packages)
        contents = contents_of(source, self._packages)
        if len(contents.environments) != 1:
            raise ValueError(
                "The source must define a function reply(row, seed, said), or one "
                "class with reset and either step or tools; it has "
                f"{', '.join(contents.environments) or 'neither'}."
            )
        ((self._class, tools),) = contents.environments.items()
        self._has_open = bool(self._class) or "open" in contents.functions
        self._names = tuple(tools)
        self.tools = definitions(tools, tools)

    def open(self, row: Row, seed: int) -> Sequence[Message]:
        return self._ask(row, seed, []).value.all_messages if self._has_open else ()

    def reply(self, row: Row, seed: int, said: Sequence[Said]) -> Reply:
        played = self._ask(row, seed, said)
        answer, results = played.value, played.calls
        if self.tools and len(results) == len(said[-1].calls):
            calls = [
                replace(call, result=result.text, error=result.error)
                for call, result in zip(said[-1].calls, results, strict=True)
            ]
            return replace(_reply_of(calls), episode_reward=answer.episode_reward)
        if not answer.done and not answer.all_messages:
            raise EnvironmentFailed(
                "The environment neither said anything nor ended the episode. Return "
                "a text, or a dict with text or done."
            )
        return Reply(
            messages=answer.all_messages,
            is_done=answer.done,
            reward=answer.reward,
            episode_reward=answer.episode_reward,
            metrics=valid_metrics(answer.metrics),
        )

    def check(self, row: Row) -> None:
        """Ask the same of two sandboxes. A failure is an answer, too: the text is not
        one that a policy would say.

        Raises:
            ValueError: their answers differ.
        """
        text = next(iter(answers_of(row.answer)), "1")
        calls = tuple(ToolCall(name=name, arguments={}) for name in self._names)
        said = (Said(text=text, content=text, calls=calls),)
        answers = []
        for owner in ("first check", "second check"):
            with pool.asking_for(owner):
                answers.append([self._answer(row, ()), self._answer(row, said)])
        if answers[0] != answers[1]:
            raise ValueError(
                "The environment's answers differ for the same row and seed. Draw "
                "random numbers from the seed, and do not use the time."
            )

    def _answer(self, row: Row, said: Sequence[Said]) -> object:
        try:
            return self.reply(row, 0, said) if said else self.open(row, 0)
        except EnvironmentFailed as error:
            return str(error)

    def _ask(self, row: Row, seed: int, said: Sequence[Said]) -> _Played:
        turns = [
            {
                "text": turn.text,
                "content": turn.content,
                "calls": [
                    {
                        "name": call.name,
                        "arguments": call.arguments,
                        "error": _fault(call, self._names),
                    }
                    for call in turn.calls
                ],
            }
            for turn in said
        ]
        question = {
            "source": self._source,
            "class": self._class,
            "row": _fields(row),
            "seed": seed,
            "said": turns,
        }
        # A class plays all turns again.
        seconds = self._seconds * (max(len(said), 1) if self._class else 1)
        try:
            return ask(
                "environment", question, _Played, self._packages, seconds=seconds
            )
        except CallFailed as failure:
            raise EnvironmentFailed(
                f"The environment {failure}.", is_timeout=failure.is_timeout
            ) from failure


# What is read of a sandbox's replies, which are untrusted


def _storable(text: str) -> str:
    """Replace what UTF-8 has not, and no database stores."""
    return replace_surrogates(text).replace("\0", "\N{REPLACEMENT CHARACTER}")


_Text = Annotated[str, AfterValidator(_storable)]


class _Result(BaseModel):
    """A call's result, or an error."""

    text: _Text = ""
    error: _Text = ""


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    role: Literal["user", "tool"]
    content: _Text
    name: _Text = ""


class _Answer(BaseModel):
    """The answer of a user's environment."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    text: _Text | None = None  # a message of the user
    messages: list[_Message] = Field([], max_length=MAX_CALLS)
    done: bool = False
    reward: float | None = Field(None, ge=-MAX_NUMBER, le=MAX_NUMBER)
    episode_reward: float | None = Field(None, ge=-MAX_NUMBER, le=MAX_NUMBER)
    metrics: dict[str, Any] = {}

    @property
    def all_messages(self) -> tuple[Message, ...]:
        said = [_Message(role="user", content=self.text)] if self.text else []
        messages = [*self.messages, *said]
        return tuple(message.model_dump(exclude_defaults=True) for message in messages)


def _in_full(value: Any) -> Any:
    """Return a text or a list of messages as an answer, and None as an empty one."""
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, list):
        return {"messages": value}
    return {} if value is None else value


class _Played(BaseModel):
    value: Annotated[_Answer, BeforeValidator(_in_full)]
    calls: list[_Result] = []


class Signature(BaseModel):
    """The parameters of a function, or the error where no tool can have them."""

    doc: str = ""
    parameters: dict[str, bool] = {}  # whether it is required
    hints: dict[str, Any] = {}  # a type's name, and a list of those in its brackets
    error: str = ""


class Contents(BaseModel):
    """The public functions that a source defines, and of its environments the tools.

    An environment is the function `reply`, without a name, or a class by its name.
    """

    functions: dict[str, Signature] = {}
    environments: dict[str, dict[str, Signature]] = {}


# Definitions and calls


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


def definitions(
    names: Collection[str], signatures: Mapping[str, Signature]
) -> list[dict[str, Any]]:
    """Return the tools of these names as chat templates take them.

    Raises:
        ValueError: one is not there, or has no JSON schema.
    """
    tools = []
    for name in names:
        if name not in signatures:
            there = ", ".join(signatures)
            raise ValueError(f'There is no tool "{name}". There are {there}.')
        signature = signatures[name]
        try:
            tools.append(_definition(name, signature))
        except Exception as error:
            # Without the advice of transformers, which is for its own callers.
            why = signature.error or first_line(error).partition(", likely")[0]
            raise ValueError(f"{name} cannot be a tool: {why}") from error
    return tools


def _definition(name: str, signature: Signature) -> dict[str, Any]:
    """Return what `get_json_schema` makes of a function that has this signature."""
    hints = {key: _type_of(*hint) for key, hint in signature.hints.items()}
    parameters = [
        inspect.Parameter(
            parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if is_required else None,
            annotation=hints.get(parameter, inspect.Parameter.empty),
        )
        for parameter, is_required in signature.parameters.items()
    ]
    looks: Any = SimpleNamespace(
        __name__=name,
        __doc__=signature.doc,
        __annotations__=hints,
        __signature__=inspect.Signature(parameters),
    )
    return get_json_schema(update_wrapper(lambda: None, looks))


_TYPES: dict[str, Any] = {
    "Any": Any, "NoneType": type(None), "bool": bool, "dict": dict, "float": float,
    "int": int, "list": list, "str": str, "tuple": tuple,
}  # fmt: skip


def _type_of(name: str, parts: list[Any]) -> Any:
    if name == "Literal":
        return Literal[tuple(parts)]
    arguments = tuple(_type_of(*part) for part in parts)
    if name == "Union":
        return Union[arguments]  # noqa: UP007 - of a tuple
    # Of a type that JSON has not, its name is in the error.
    type_: Any = _TYPES.get(name) or type(name, (), {"__module__": "builtins"})
    return type_[arguments] if arguments else type_


def _fault(call: ToolCall, names: Collection[str]) -> str:
    """Return why a call cannot be run; empty: it can."""
    if call.error:
        return call.error
    if call.name not in names:
        name = call.name[:_MAX_NAME_CHARS]
        return f'There is no tool "{name}". There are {", ".join(names)}'
    if isinstance(call.arguments, str):
        return f"The arguments are not a JSON object: {quote(call.arguments)}"
    return ""


def _reply_of(calls: Sequence[ToolCall]) -> Reply:
    """Return a message for each call; without calls the episode is done."""
    messages = tuple(
        {
            "role": "tool",
            "name": call.name[:_MAX_NAME_CHARS],
            "content": f"Error: {call.error}" if call.error else call.result,
        }
        for call in calls
    )
    return Reply(messages=messages, is_done=not calls, calls=tuple(calls))


def _fields(row: Row) -> dict[str, Any]:
    """Return a row as its line in the dataset has it."""
    return {**row.columns, "prompt": row.prompt, "answer": row.answer}


# The sandbox


@contextmanager
def _in_sandbox() -> Iterator[None]:
    try:
        yield
    except pool.SandboxFailed as error:
        is_timeout = seconds_left() < pool.LEAST_SECONDS
        text = (
            "Its time was up before a sandbox answered." if is_timeout else str(error)
        )
        raise EnvironmentFailed(text, is_timeout=is_timeout) from error


@_in_sandbox()
def packages_of(source: str, packages: Collection[str]) -> tuple[str, ...]:
    """Return the packages of a source's sandbox: those named, and those it imports.

    Raises:
        ValueError: one that is named cannot be had.
        EnvironmentFailed: no sandbox can be had.
    """
    offered = packages_here(pool.sandbox_level())
    if missing := sorted({*packages} - offered.keys()):
        raise ValueError(
            f'The sandbox has no package "{missing[0]}". It has {", ".join(offered)}.'
        )
    return tuple(sorted({*packages, *imported_packages(source)}))


@lru_cache(maxsize=64)
def contents_of(source: str, packages: tuple[str, ...] = ()) -> Contents:
    """Return what a source defines, as running it in a sandbox shows.

    Raises:
        ValueError: it does not run.
        EnvironmentFailed: no sandbox can be had.
    """
    question = {"source": source}
    try:
        return ask("contents", question, Contents, packages, seconds=_CONTENTS_SECONDS)
    except CallFailed as failure:
        raise ValueError(f"The source {failure}.") from failure


Model = TypeVar("Model", bound=BaseModel)


def ask(
    kind: Literal["contents", "tool", "environment"],
    question: dict[str, Any],
    model: type[Model],
    packages: tuple[str, ...],
    *,
    seconds: float,
) -> Model:
    """Return the reply to a call, in a sandbox with these packages.

    Raises:
        CallFailed: by the fault of the source.
        EnvironmentFailed: by no fault of its own.
    """
    try:
        return model.model_validate(
            result_of(*_call(kind, question, packages, seconds))
        )
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(map(str, fault["loc"]))
        raise CallFailed(
            f"returned {quote(fault['input'])} as {where}: {fault['msg']}"
        ) from error


@_in_sandbox()
def _call(
    kind: str, question: dict[str, Any], packages: tuple[str, ...], seconds: float
) -> tuple[Answer, Limits]:
    limits = Limits(wall_seconds=min(seconds, MAX_CALL_SECONDS))
    return pool.ask(kind, [question], limits, packages=packages), limits
