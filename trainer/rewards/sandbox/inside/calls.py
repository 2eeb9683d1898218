"""The calls that a child can perform, by name.

"attempts" tries what a sandbox must prevent. "function" runs a user's reward function
on one completion; "contents", "tool" and "environment" run a user's tools and
environments. "program" and "steps" run code of a model without its expected values:
output and return values are compared elsewhere. "plan" is in `plans`.
"""

from __future__ import annotations

import ast
import enum
import inspect
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Callable
from types import FunctionType, UnionType
from typing import Any, NoReturn

from trainer.rewards.sandbox.inside import scratch
from trainer.rewards.sandbox.inside.messages import (
    describe,
    encode,
    module_names,
    next_question,
    open_outputs,
    plain,
    print_traceback,
    questions,
    reply,
    run,
)


def perform_attempts() -> None:
    """Reply with the names of what was not refused."""
    paths = next_question()["paths"]
    tries: dict[str, Callable[[], object]] = {
        "start a process": os.fork,
        "run a program": lambda: os.execv("/bin/true", ["true"]),  # noqa: S606
        "run a command": lambda: subprocess.run(["/bin/true"], check=True),
        "open a connection": lambda: socket.socket(socket.AF_INET),
        "send a datagram": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "open a local socket": lambda: socket.socket(socket.AF_UNIX),
        "signal its parent": lambda: os.kill(os.getppid(), signal.SIGTERM),
        "signal all processes": lambda: os.kill(-1, signal.SIGCONT),
        "read the clock of another process": lambda: time.clock_gettime((~1 << 3) | 2),
        "read the CPU affinity of another process": lambda: os.sched_getaffinity(1),
        "leave its session": os.setsid,
        "write a file": lambda: open("/tmp/cohort-attempt", "w"),  # nosec B108 # noqa: SIM115, S108
        "list the root": lambda: os.listdir("/"),
        "list processes": lambda: os.listdir("/proc"),
        "read its environment": lambda: open("/proc/self/environ"),  # noqa: SIM115
        "become root": lambda: os.setuid(0),
        "raise its limits": lambda: _raise_limit(),
    }
    for path in paths:
        tries[f"read {path}"] = _opener(path)
    reply([name for name, attempt in tries.items() if _happens(attempt)])


def _raise_limit() -> None:
    import resource  # noqa: PLC0415 - it is loaded; this names it

    resource.setrlimit(resource.RLIMIT_CPU, (99, 99))


def _opener(path: str) -> Callable[[], object]:
    return lambda: open(path)


def _happens(attempt: Callable[[], object]) -> bool:
    try:
        result = attempt()
    except (OSError, ValueError):
        return False
    if result == 0 and attempt is os.fork:
        os._exit(0)  # the child of a fork that was allowed
    return True


FUNCTION_SOURCE = "<reward>"
FUNCTION_NAME = "reward"
_STARRED = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def perform_function() -> None:
    """Reply with {"value": number or null}, or {"error": one line}.

    A function of TRL's form gives {"values": [number, null or {"error": one line}]};
    beside either, {"metrics": {name: number}} where it gave some.
    """
    respond(lambda question: _GIVEN[question.get("gives", "number")](question))


def respond(perform: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Reply with what a question gives, or {"error": one line}."""
    open_outputs(at_once=True)
    scratch.offer()
    question = next_question()
    try:
        reply(perform(question))
    except MemoryError:
        reply({"error": "MemoryError: it exceeded its memory limit"})
    except Refused as refusal:
        reply({"error": str(refusal)})
    except BaseException as error:  # noqa: BLE001 - SystemExit too: it is reported
        print_traceback(error)
        reply({"error": describe(error, FUNCTION_SOURCE)})


def _plain_parameters(function: object) -> tuple[str, ...] | None:
    """Name those of a function without * and **. To ask `inspect` takes a tenth of a
    call.
    """
    if type(function) is not FunctionType or function.__dict__:
        return None
    code = function.__code__
    if code.co_posonlyargcount or code.co_flags & _STARRED:
        return None
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


class Refused(Exception):
    """The function is none, or gave what is no score; the text is a predicate."""


def _number_or_dict(question: dict[str, Any]) -> dict[str, Any]:
    """Read verl's: the score in a dict, whose other numbers are metrics."""
    del question["gives"]
    value = judge(**question)
    if not isinstance(value, dict):
        return {"value": number(value)}
    if "score" not in value:
        raise Refused("it returned a dict without a score")
    others = {str(key): item for key, item in value.items() if key != "score"}
    metrics = {
        key: float(metric) for key, metric in others.items() if _is_number(metric)
    }
    return {"value": number(value["score"]), "metrics": metrics}


def _numbers(question: dict[str, Any]) -> dict[str, Any]:
    """Read TRL's: a number, or None, for each completion."""
    metrics: dict[str, list[float]] = {}

    def log_metric(name: str, value: float) -> None:
        metrics.setdefault(str(name), []).append(float(value))

    def log_extra(column: str, values: Any) -> None:
        print(f"{column}: {list(values)}")  # noqa: T201 - to the rule's log

    arguments = question["arguments"] | {
        "log_metric": log_metric,
        "log_extra": log_extra,
    }
    value: Any = judge(question["source"], arguments, question["function"])
    count = question["num_completions"]
    if isinstance(value, str | bytes | dict) or not hasattr(value, "__iter__"):
        raise Refused(
            f"it returned a {type(value).__name__}, not a list of {count} numbers"
        )
    values = list(value)
    if len(values) != count:
        raise Refused(f"it returned {len(values)} numbers for {count} completions")
    means = {name: sum(numbers) / len(numbers) for name, numbers in metrics.items()}
    return {"values": [_number_or_error(value) for value in values], "metrics": means}


def _number_or_error(value: object) -> float | dict[str, str] | None:
    try:
        return number(value)
    except Refused as refusal:
        return {"error": str(refusal)}


_GIVEN: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "number": lambda question: {"value": number(judge(**question))},
    "verl": _number_or_dict,
    "trl": _numbers,
}


def judge(
    source: str, arguments: dict[str, Any], function: str = FUNCTION_NAME
) -> object:
    called = load(source).get(function)
    if not callable(called):
        raise Refused(f"it defines no function named {function}")
    return awaited(called(**wanted(called, arguments)))


def load(source: str) -> dict[str, Any]:
    """Run a user's source, and return its names."""
    names = module_names("reward_function")
    try:
        run(source, FUNCTION_SOURCE, names)
    except ModuleNotFoundError:
        _run_past_imports(source, names)
    return names


class _Absent:
    """A name of a module that is not there: it fails where it is used."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise ModuleNotFoundError(self._text)

    __getattr__ = __call__


# Nothing that an annotation names has to be there.
_LAZY = ast.parse("from __future__ import annotations").body
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_BINDING = ast.Import | ast.ImportFrom | ast.ClassDef | _FUNCTIONS


def _run_past_imports(source: str, names: dict[str, Any]) -> None:
    """Run a source's statements one by one; those that import a module may fail.

    So may a function whose decorator is absent, or a class whose base is: it is itself.
    """
    parts = [
        part
        for node in ast.parse(source.removeprefix("\ufeff")).body
        for part in (
            [ast.copy_location(ast.Import([alias]), node) for alias in node.names]
            if isinstance(node, ast.Import)
            else [node]
        )
    ]
    for part in parts:
        try:
            whole = ast.Module([*_LAZY, part], [])
            code = compile(whole, FUNCTION_SOURCE, "exec", dont_inherit=True)
            exec(code, names)  # nosec B102 # noqa: S102 - as `run`
        except ModuleNotFoundError as error:
            if not isinstance(part, _BINDING):
                raise
            for named in getattr(part, "names", [part]):
                name = getattr(named, "asname", None) or named.name.partition(".")[0]
                names[name] = _Absent(str(error))


def awaited(value: Any) -> Any:
    """Return what a coroutine gives; another value as it is.

    One whose source has not imported asyncio waits for nothing, and asyncio takes
    longer to import than most functions to run.
    """
    if not hasattr(value, "__await__"):
        return value
    if "asyncio" in sys.modules:
        return sys.modules["asyncio"].run(_await(value))
    try:
        value.__await__().send(None)
    except StopIteration as end:
        return end.value
    raise Refused("it awaits something without asyncio")


async def _await(value: Any) -> object:
    return await value


def wanted(function: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return those of the arguments that it has parameters for."""
    named = _plain_parameters(function)
    if named is not None and all(name in arguments for name in named):
        return {name: arguments[name] for name in named}
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return arguments
    unknown = [
        parameter.name
        for parameter in parameters
        if parameter.name not in arguments
        and parameter.default is parameter.empty
        and parameter.kind is not parameter.VAR_POSITIONAL
    ]
    if unknown:
        raise Refused(
            f"its parameter {unknown[0]} is unknown; use {', '.join(arguments)}"
        )
    return {
        parameter.name: arguments[parameter.name]
        for parameter in parameters
        if parameter.name in arguments
    }


def number(value: object) -> float | None:
    if value is None:
        return None
    if not _is_number(value):
        raise Refused(f"it returned a {type(value).__name__}, not a number")
    score = float(value)  # type: ignore[arg-type]  # it is one
    if not math.isfinite(score):
        raise Refused(f"it returned {score}, which is not a valid score")
    return score


def _is_number(value: object) -> bool:
    """Accept also numpy's, sympy's, and a fraction."""
    return isinstance(value, int | float) or hasattr(type(value), "__float__")


# Tools and environments. Each call runs the user's source again; a class with state is
# made for each, and plays the earlier turns before it answers the last.


def call_tool(question: dict[str, Any]) -> dict[str, Any]:
    """Return {"text": the result, or its beginning and how long it is}.

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
    if len(value) > MAX_RESULT_CHARS:
        note = f"\n… {MAX_RESULT_CHARS:,} of {len(value):,} characters"
        value = value[:MAX_RESULT_CHARS] + note
    return {"text": value}


def _is_filled_in(parameter: inspect.Parameter) -> bool:
    """Return whether the episode gives it, not the policy."""
    return parameter.annotation is parameter.empty and parameter.name in _FILLED_IN


def ask_environment(question: dict[str, Any]) -> dict[str, Any]:
    """Return {"value": what the user's code answers}.

    Of a class whose methods are tools, also {"calls": [as `call_tool`, or "error"]}.
    """
    random.seed(question["seed"])
    source, name = question["source"], question["class"]
    if name:
        return _play(load(source)[name](), question)
    given = {name: question[name] for name in ("row", "seed", "said")}
    return {"value": judge(source, given, "reply" if question["said"] else "open")}


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


MAX_RESULT_CHARS = 8_000
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


PROGRAM_SOURCE = "<completion>"
_STEP = "<test>"
_PIPE_BYTES = 65_536


def perform_program() -> None:
    """Run a whole program with text on its standard input; its output is the result."""
    question = next_question()
    text = question["stdin"].encode("utf-8", "replace")
    reader, writer = os.pipe()
    os.dup2(reader, 0)
    os.close(reader)
    sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    if len(text) <= _PIPE_BYTES:
        _write(writer, text)
    else:
        threading.Thread(target=_write, args=(writer, text), daemon=True).start()
    open_outputs(at_once=False)
    # As a program's own: `if __name__ == "__main__"` is what starts many of them.
    run(question["source"], PROGRAM_SOURCE, module_names("__main__"))


def _write(writer: int, text: bytes) -> None:
    unwritten = memoryview(text)
    while unwritten:
        unwritten = unwritten[os.write(writer, unwritten) :]
    os.close(writer)


def perform_steps() -> None:
    """Run the source, then do each step that is asked for, in one namespace.

    Replies {} or {"value": as JSON} to each; {"error": one line} where it raised.
    """
    open_outputs(at_once=True)
    names = module_names("completion")
    question = next_question()
    reply(attempt(question["source"], PROGRAM_SOURCE, names, is_value=False))
    # Tests may have a main guard of their own, which is to start them.
    names["__name__"] = "__main__"
    for step in questions():
        reply(attempt(step["code"], _STEP, names, is_value=step["is_value"]))


def attempt(
    code: str, name: str, names: dict[str, Any], *, is_value: bool
) -> dict[str, Any]:
    try:
        if not is_value:
            run(code, name, names)
            return {}
        value = eval(compile(code, name, "eval", dont_inherit=True), names)  # nosec B307 # noqa: S307 - as `run`
        return {"value": encode(value)}
    except BaseException as error:  # noqa: BLE001 - SystemExit too: a step failed
        return {"error": describe(error, name)}
