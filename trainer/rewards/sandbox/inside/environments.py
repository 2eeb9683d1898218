"""The calls "contents", "tool" and "environment": tools and environments of a user.

Each call runs the user's source again. A class with state is made for each, and plays
the earlier turns before it answers the last.
"""

from __future__ import annotations

import enum
import inspect
import json
import random
import typing
from collections.abc import Callable
from types import UnionType
from typing import Any

from trainer.rewards.sandbox.inside.calls import (
    FUNCTION_SOURCE,
    awaited,
    load,
    respond,
    wanted,
)
from trainer.rewards.sandbox.inside.messages import describe, plain


def perform_tool() -> None:
    """Reply with {"text": its beginning, "num_chars": of all}, or {"error": one line}.

    A result that is no text is JSON.
    """
    respond(_call_tool)


def _call_tool(question: dict[str, Any]) -> dict[str, Any]:
    random.seed(question["seed"])
    function = load(question["source"])[question["function"]]
    return _result(function, question["arguments"], question["max_chars"])


def _result(
    function: Callable[..., Any], arguments: dict[str, Any], max_chars: int
) -> dict[str, Any]:
    value = awaited(function(**arguments))
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, default=plain)
    return {"text": value[:max_chars], "num_chars": len(value)}


def perform_environment() -> None:
    """Reply with {"value": what the user's code answers}, or {"error": one line}.

    Of a class whose methods are tools, also {"calls": [as "tool" replies]}.
    """
    respond(_ask_environment)


def _ask_environment(question: dict[str, Any]) -> dict[str, Any]:
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
            continue
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
        parameters = inspect.signature(method).parameters
        filled_in = {
            name: question[name]
            for name in ("row", "seed")
            if name in parameters
            and parameters[name].annotation is inspect.Parameter.empty
        }
        return _result(method, call["arguments"] | filled_in, question["max_chars"])
    except BaseException as error:  # noqa: BLE001 - SystemExit too: the policy reads it
        return {"error": f"{call['name']} failed: {describe(error, FUNCTION_SOURCE)}"}


_OWN = ("reset", "get_reward")  # methods that are no tools, as TRL has it


def perform_contents() -> None:
    """Reply with the source's {"functions", "environments"}, each by its name.

    The function `reply` is an environment without a name; others are classes.
    """
    respond(lambda question: _contents(load(question["source"])))


def _contents(names: dict[str, Any]) -> dict[str, Any]:
    own = {
        name: value
        for name, value in names.items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == names["__name__"]
    }
    classes = {
        name: value
        for name, value in own.items()
        if isinstance(value, type) and hasattr(value, "reset")
    }
    bases = {base for cls in classes.values() for base in cls.__mro__[1:]}
    functions = {
        name: _signature(value)
        for name, value in own.items()
        if callable(value) and not isinstance(value, type)
    }
    environments: dict[str, Any] = {
        name: {"has_open": True, "tools": _tools(cls)}
        for name, cls in classes.items()
        if cls not in bases
    }
    if "reply" in functions:
        environments = {"": {"has_open": "open" in functions, "tools": {}}}
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
    """Return "doc", "hints", by "parameters" whether each is required, and those that
    are "unnamed": no call can give them.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
        types = typing.get_type_hints(function)
        hints = {name: _hint(value) for name, value in types.items()}
        json.dumps(hints, default=plain)  # raises here, not for all functions
        return {
            "doc": inspect.getdoc(function) or "",
            "parameters": {it.name: it.default is it.empty for it in parameters},
            "hints": hints,
            "unnamed": [it.name for it in parameters if it.kind not in _BY_NAME],
        }
    except Exception as error:  # noqa: BLE001 - a type hint may name an unknown type
        return {"error": describe(error, FUNCTION_SOURCE)}


def _hint(hint: Any) -> tuple[str, list[Any]]:
    """Return a type's name and what stands in its brackets."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "Literal", [member.value for member in hint]
    if origin is typing.Literal:
        return "Literal", list(arguments)
    if origin in (typing.Union, UnionType):
        return "Union", [_hint(part) for part in arguments]
    name = getattr(origin or hint, "__name__", "?")
    return name, [_hint(part) for part in arguments]
