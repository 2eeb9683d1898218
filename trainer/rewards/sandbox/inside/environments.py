"""The calls "contents", "tool" and "environment": tools and environments of a user.

Each replies with what its function returns, or with {"error": one line}.
Each call runs the user's source again. A class with state is made for each, and plays
the earlier turns before it answers the last.
"""

from __future__ import annotations

import enum
import inspect
import json
import random
import typing
from types import UnionType
from typing import Any

from trainer.rewards.sandbox.inside.calls import (
    FUNCTION_SOURCE,
    awaited,
    load,
    wanted,
)
from trainer.rewards.sandbox.inside.messages import describe, plain


def call_tool(question: dict[str, Any]) -> dict[str, Any]:
    """Return {"text": the beginning of a result, "num_chars": of all}.

    A result that is no text is JSON.
    """
    random.seed(question["draw"])
    function = load(question["source"])[question["name"]]
    return _call(function, question["arguments"], question)


def _call(
    function: Any, arguments: dict[str, Any], question: dict[str, Any]
) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    filled_in = {it.name: question[it.name] for it in parameters if _is_filled_in(it)}
    value = awaited(function(**(arguments | filled_in)))
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, default=plain)
    return {"text": value[: question["max_chars"]], "num_chars": len(value)}


def _is_filled_in(parameter: inspect.Parameter) -> bool:
    """Return whether the episode gives it, not the policy."""
    return parameter.annotation is parameter.empty and parameter.name in _FILLED_IN


def ask_environment(question: dict[str, Any]) -> dict[str, Any]:
    """Return {"value": what the user's code answers}.

    Of a class whose methods are tools, also {"calls": [as `call_tool`, or "error"]}.
    """
    random.seed(question["seed"])
    names = load(question["source"])
    if question["class"]:
        return _play(names[question["class"]](), question)
    function = names["reply" if question["said"] else "open"]
    given = {name: question[name] for name in ("row", "seed", "said")}
    return {"value": awaited(function(**wanted(function, given)))}


def _play(environment: Any, question: dict[str, Any]) -> dict[str, Any]:
    # A column of the row takes the place of neither.
    given = {**question["row"], "row": question["row"], "seed": question["seed"]}
    value = awaited(environment.reset(**wanted(environment.reset, given)))
    # Gymnasium's has a second, its info.
    outcome = {"value": value[0] if isinstance(value, tuple) else value}
    for turn in question["said"]:
        if hasattr(environment, "step"):
            outcome = {"value": _step(environment, turn["content"])}
        else:
            calls = [_attempt(environment, call, question) for call in turn["calls"]]
            outcome = {"value": {}, "calls": calls}
    if "calls" in outcome and hasattr(environment, "get_reward"):
        outcome["value"]["episode_reward"] = awaited(environment.get_reward())
    return outcome


def _step(environment: Any, text: str) -> Any:
    """Return what a step answers; Gymnasium's five values as a dict."""
    value = awaited(environment.step(text))
    if isinstance(value, tuple) and len(value) == 5:
        text, reward, terminated, truncated, _ = value
        return {"text": text, "reward": reward, "done": bool(terminated or truncated)}
    return value


def _attempt(
    environment: Any, call: dict[str, Any], question: dict[str, Any]
) -> dict[str, Any]:
    if call["error"]:
        return {"error": call["error"]}
    try:
        method = getattr(environment, call["name"])
        return _call(method, call["arguments"], question)
    except BaseException as error:  # noqa: BLE001 - SystemExit too: the policy reads it
        return {"error": f"{call['name']} failed: {describe(error, FUNCTION_SOURCE)}"}


_FILLED_IN = ("row", "seed")  # parameters without a type
_OWN = ("reset", "get_reward")  # methods that are no tools, as TRL has it


def describe_source(question: dict[str, Any]) -> dict[str, Any]:
    """Return {"functions": their signatures, "environments": the tools of each}.

    The function `reply` is an environment without a name; others are classes.
    """
    names = load(question["source"])
    own = {
        name: value
        for name, value in names.items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == names["__name__"]
    }
    functions = {
        name: _signature(value)
        for name, value in own.items()
        if callable(value) and not isinstance(value, type)
    }
    if "reply" in functions:
        return {"functions": functions, "environments": {"": {}}}
    classes = {
        name: value
        for name, value in own.items()
        if isinstance(value, type) and hasattr(value, "reset")
    }
    bases = {base for cls in classes.values() for base in cls.__mro__[1:]}
    environments = {
        name: _tools(cls) for name, cls in classes.items() if cls not in bases
    }
    return {"functions": functions, "environments": environments}


def _tools(cls: type) -> dict[str, Any]:
    """Return the methods that a policy may call; none of a class that has `step`."""
    return {
        name: _signature(method)
        for name, method in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and name not in _OWN and not hasattr(cls, "step")
    }


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _signature(function: Any) -> dict[str, Any]:
    """Return "doc", "hints" and, by the "parameters" that a call gives, whether each is
    required; or an "error".
    """
    try:
        parameters = inspect.signature(function).parameters.values()
        types = typing.get_type_hints(function)
        hints = {name: _hint(value) for name, value in types.items()}
        json.dumps(hints, default=plain)  # raises here, not for all functions
        if unnamed := [it.name for it in parameters if it.kind not in _BY_NAME]:
            return {"error": f"{', '.join(unnamed)} cannot be given by name"}
        asked = {
            it.name: it.default is it.empty
            for it in parameters
            if not _is_filled_in(it)
        }
        doc = inspect.getdoc(function) or ""
        return {"doc": doc, "parameters": asked, "hints": hints}
    except Exception as error:  # noqa: BLE001 - a type hint may name an unknown type
        return {"error": describe(error, FUNCTION_SOURCE)}


def _hint(hint: Any) -> tuple[str, list[Any]]:
    """Return a type's name and what stands in its brackets."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "Literal", [member.value for member in hint]
    if origin is typing.Literal:
        return "Literal", list(arguments)
    is_union = origin in (typing.Union, UnionType)
    name = "Union" if is_union else getattr(origin or hint, "__name__", "?")
    return name, [_hint(part) for part in arguments]
