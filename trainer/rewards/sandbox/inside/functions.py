"""The call "function": a user's reward function judges one completion."""

from __future__ import annotations

import inspect
import math
from types import FunctionType
from typing import Any

from trainer.rewards.sandbox.inside.talking import (
    describe,
    hear,
    open_outputs,
    print_traceback,
    reply,
    run,
)

SOURCE = "<reward>"
NAME = "reward"
_STARRED = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def perform() -> None:
    """Replies with {"value": number or null}, or {"error": one line}."""
    open_outputs(at_once=True)
    question = hear()
    try:
        value = judge(question["source"], question["arguments"])
        found: dict[str, Any] = {"value": number(value)}
    except MemoryError:
        found = {"error": "MemoryError: it needs more memory than it may have"}
    except _Refused as refusal:
        found = {"error": str(refusal)}
    except BaseException as error:  # noqa: BLE001 - SystemExit too: it is told
        print_traceback(error)
        found = {"error": describe(error, SOURCE)}
    reply(found)


def _plain_parameters(function: object) -> tuple[str, ...] | None:
    """Of a function without * and **. To ask `inspect` takes a tenth of a call."""
    if type(function) is not FunctionType or function.__dict__:
        return None
    code = function.__code__
    if code.co_posonlyargcount or code.co_flags & _STARRED:
        return None
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


class _Refused(Exception):
    """The function is none, or gave what is no score; the text is a predicate."""


def judge(source: str, arguments: dict[str, Any]) -> object:
    names: dict[str, Any] = {
        "__name__": "reward_function",
        "__builtins__": __builtins__,
    }
    run(source, SOURCE, names)
    function = names.get(NAME)
    if not callable(function):
        raise _Refused(f"it defines no function named {NAME}")
    return function(**_wanted(function, arguments))


def _wanted(function: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that it has parameters for."""
    named = _plain_parameters(function)
    if named is not None and all(name in arguments for name in named):
        return {name: arguments[name] for name in named}
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return arguments
    unknown = [
        each.name
        for each in parameters
        if each.name not in arguments
        and each.default is each.empty
        and each.kind is not each.VAR_POSITIONAL
    ]
    if unknown:
        raise _Refused(f"its parameter {unknown[0]} is none of {', '.join(arguments)}")
    return {
        each.name: arguments[each.name] for each in parameters if each.name in arguments
    }


def number(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float):
        raise _Refused(f"it gave a {type(value).__name__}, which is no number")
    found = float(value)
    if not math.isfinite(found):
        raise _Refused(f"it gave {found}, which is no score")
    return found
