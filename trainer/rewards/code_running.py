"""Runs a completion's code against a row's tests, in a sandbox.

The process of the code does not know the expected values: it returns values, which are
compared here. Asserts that cannot be split into a call and an expected value are the
exception, and are counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from trainer.rewards.rule import (
    NotApplicable,
    Sample,
    Unscorable,
    quote,
    require_column,
    shown,
    tell,
)
from trainer.rewards.sandbox import pool
from trainer.rewards.sandbox.inside.messages import encode
from trainer.rewards.sandbox.limits import MEBIBYTE, Limits
from trainer.rewards.sandbox.slot import Answer, how_it_ended, parsed
from trainer.rewards.sandbox.values import Formula, holds, is_judged_inside

MAX_TEXT = 262_144  # characters of the tests that are used
_MAX_JSON = 8 * 1024**2
# MBPP's, of text with asserts.
_SETUP_COLUMNS = ("test_imports", "test_setup_code")
_CALL = "functional"  # LiveCodeBench's word for a case of a function
_INPUTS, _OUTPUTS = ("input", "stdin", "inputs"), ("output", "stdout", "outputs")


@dataclass(frozen=True, kw_only=True)
class Asserts:
    """Python text with asserts; several texts are a test each."""

    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Programs:
    """The inputs that a program reads, and the outputs that it is to print."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Calls:
    """Arguments and accepted results of one function each, as JSON values."""

    calls: tuple[tuple[str, list[Any], list[Any]], ...]


Tests = Asserts | Programs | Calls


def read_tests(sample: Sample, column: str, *, most: int) -> Tests:
    """Return the first tests of a row, so many at most.

    They are cut before anything is read of them: a row may hold thousands.

    Raises:
        NotApplicable: there are none, or in no form that is known.
    """
    value = _decoded(require_column(sample, column), column)
    tests = _tests(value, most)
    if tests is None:
        raise NotApplicable(
            f'Column "{column}" has no readable tests; this row has {quote(value)}. '
            "Provide text with asserts, a list of such texts, or a list of objects "
            'with "input" and "output".'
        )
    if isinstance(tests, Asserts):
        setup = [_text(sample.columns.get(name)) or "" for name in _SETUP_COLUMNS]
        first = "\n".join([*setup, tests.texts[0]])
        tests = Asserts(texts=(first, *tests.texts[1:]))
    return tests


def _decoded(value: Any, column: str) -> Any:
    """Return the column, or what its JSON text says."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        if len(value) > _MAX_JSON:
            raise NotApplicable(
                f'Column "{column}" has {len(value):,} characters of tests; the limit '
                f"is {_MAX_JSON:,}. Keep fewer tests in the row."
            )
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _tests(value: Any, most: int) -> Tests | None:
    if isinstance(value, str):
        return _asserts([value])
    if isinstance(value, Mapping):
        value = _listed(value, most)
    if not isinstance(value, Sequence) or not value:
        return None
    first = value[:most]
    if all(isinstance(test, str) for test in first):
        return _asserts(first)
    if not all(isinstance(test, Mapping) for test in first):
        return None
    pairs = [(_first(case, _INPUTS), _first(case, _OUTPUTS)) for case in first]
    if any(case.get("fn_name") or case.get("testtype") == _CALL for case in first):
        try:
            return Calls(calls=tuple(map(_call, first, pairs)))
        except (ValueError, LookupError, TypeError):
            return None
    texts = [(_text(stdin), _text(expected)) for stdin, expected in pairs]
    if any(stdin is None or expected is None for stdin, expected in texts):
        return None
    return Programs(
        pairs=tuple((str(stdin), str(expected)) for stdin, expected in texts)
    )


def _asserts(texts: Sequence[str]) -> Asserts | None:
    size = sum(map(len, texts))
    if size > MAX_TEXT:
        raise NotApplicable(
            f"The tests have {size:,} characters; the limit is {MAX_TEXT:,}. Lower "
            "the rule's number of tests, or keep fewer in the row."
        )
    return Asserts(texts=tuple(texts)) if any(map(str.strip, texts)) else None


def _listed(value: Mapping[str, Any], most: int) -> Any:
    """{"inputs": […], "outputs": […]} as a list of objects.

    APPS, TACO and PRIME wrap the result of a function in a list, but not in every row:
    where all are lists of one value, either counts, as in their own checks.
    """
    inputs, outputs = _first(value, _INPUTS), _first(value, _OUTPUTS)
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        return None
    name = value.get("fn_name")
    is_wrapped = all(
        isinstance(output, list) and len(output) == 1 for output in outputs
    )
    return [
        {"input": stdin, "output": expected, "fn_name": name, "is_wrapped": is_wrapped}
        for stdin, expected in zip(inputs[:most], outputs[:most], strict=False)
    ]


def _call(
    case: Mapping[str, Any], pair: tuple[Any, Any]
) -> tuple[str, list[Any], list[Any]]:
    """Return the function's name, its arguments and the results that are accepted.

    LiveCodeBench has a JSON text per line: arguments in the input, a result in the
    output.

    Raises:
        ValueError, LookupError, TypeError: it names no function, or is not JSON.
    """
    inputs, expected = pair
    name = case.get("fn_name")
    if case.get("testtype") == _CALL:
        metadata = case["metadata"]
        name = (json.loads(metadata) if isinstance(metadata, str) else metadata)[
            "func_name"
        ]
        if isinstance(inputs, str) and isinstance(expected, str):
            inputs = [json.loads(line) for line in inputs.split("\n") if line.strip()]
            expected = json.loads(expected)
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError("the case names no function")
    arguments = inputs if isinstance(inputs, list) else [inputs]
    return (
        name,
        arguments,
        [expected, expected[0]] if case.get("is_wrapped") else [expected],
    )


def _text(value: Any) -> str | None:
    """Text, or its lines."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return value if isinstance(value, str) else None


def _first(value: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((value[name] for name in names if name in value), None)


# How often code that ends its own process is begun again, without the step it ended at.
_MAX_STARTS = 4
_PLAN_LIMITS = Limits()
_LEAST_SECONDS = 0.05
# In place of a step at which the code ended its process.
_FAILS = {"code": "raise RuntimeError", "is_value": False}


@dataclass(frozen=True, kw_only=True)
class Result:
    """The tests that passed, and how many the code itself could have decided."""

    passed: tuple[bool, ...]
    num_judged_inside: int


@dataclass(frozen=True, kw_only=True)
class _Plan:
    steps: tuple[dict[str, Any], ...]
    formulas: tuple[Formula, ...]


def run_tests(
    code: str, tests: Tests, limits: Limits, *, most: int, entry_point: str | None
) -> Result:
    """Args: limits: time for all tests of this code together; memory for each process.

    Raises:
        Unscorable: the tests cannot be read, or no sandbox can be had.
    """
    try:
        if isinstance(tests, Programs):
            passed = tuple(_run_programs(code, tests.pairs, limits))
            return Result(passed=passed, num_judged_inside=0)
        plan = (
            _plan_of_calls(tests)
            if isinstance(tests, Calls)
            else plan_of_asserts(tests, most, entry_point)
        )
        replies = _run_steps(code, plan.steps, limits)
    except pool.SandboxFailed as error:
        raise Unscorable(str(error)) from error
    return Result(
        passed=tuple(holds(formula, replies) for formula in plan.formulas),
        num_judged_inside=sum(map(is_judged_inside, plan.formulas)),
    )


# Every completion of a group meets the same tests.
@lru_cache(maxsize=64)
def plan_of_asserts(tests: Asserts, most: int, entry_point: str | None) -> _Plan:
    question = {
        "tests": tests.texts,
        "max_tests": most,
        "entry_point": entry_point,
    }
    answer = pool.ask("plan", [question], _PLAN_LIMITS)
    fault = how_it_ended(answer, _PLAN_LIMITS)
    plan = parsed(answer.replies[0]) if len(answer.replies) == 1 else None
    if fault is not None or not isinstance(plan, dict) or "error" in plan:
        why = fault or (plan or {}).get("error", "gave no reply")
        # Else they may be good, and what reads them failed.
        error = Unscorable if fault else NotApplicable
        raise error(
            f"The row's tests cannot be parsed: {why}. Correct them, or remove the row."
        )
    if not plan["tests"]:
        raise NotApplicable("The row's tests have no assert. Write assert f(1) == 2.")
    num_steps = plan["tests"][-1]["num_steps"]
    return _Plan(
        steps=tuple(plan["steps"][:num_steps]),
        formulas=tuple(test["formula"] for test in plan["tests"]),
    )


def _plan_of_calls(tests: Calls) -> _Plan:
    steps, formulas = [], []
    for number, (name, arguments, accepted) in enumerate(tests.calls):
        # Some datasets want a method of a class Solution.
        function = f"(Solution().{name} if 'Solution' in globals() else {name})"
        steps.append({"code": f"{function}(*{arguments!r})", "is_value": True})
        results = [{"json": number, "value": encode(value)} for value in accepted]
        formulas.append({"any": results})
    return _Plan(steps=tuple(steps), formulas=tuple(formulas))


def _run_steps(code: str, steps: Sequence[dict[str, Any]], limits: Limits) -> list[Any]:
    """Give the replies to the steps, as far as they came; none where the code fails."""
    deadline = time.monotonic() + limits.wall_seconds
    todo = list(steps)
    replies: list[Any] = []
    for _ in range(_MAX_STARTS):
        seconds_left = deadline - time.monotonic()
        if seconds_left < _LEAST_SECONDS:
            break
        now = replace(limits, wall_seconds=seconds_left)
        answer = pool.ask("steps", [{"source": code}, *todo], now)
        first, *replies = [parsed(reply) for reply in answer.replies] or [None]
        fault = how_it_ended(answer, limits)
        if first != {}:
            _tell(answer, fault or _error(first))
            return []
        if len(replies) >= len(todo) or answer.end != "ended":
            break
        todo[len(replies)] = _FAILS
    _tell(answer, fault)
    return replies


def _run_programs(
    code: str, pairs: Sequence[tuple[str, str]], limits: Limits
) -> Iterator[bool]:
    deadline = time.monotonic() + limits.wall_seconds
    for stdin, expected in pairs:
        seconds_left = deadline - time.monotonic()
        if seconds_left < _LEAST_SECONDS:
            yield False
            continue
        now = replace(
            limits,
            wall_seconds=seconds_left,
            output_bytes=min(MEBIBYTE, 4 * len(expected) + limits.output_bytes),
        )
        answer = pool.ask("program", [{"source": code, "stdin": stdin}], now)
        _tell(replace(answer, stdout=b"", stdout_bytes=0), how_it_ended(answer, limits))
        is_whole = answer.stdout_bytes == len(answer.stdout)
        yield (
            answer.end == "ended"
            and answer.code == 0
            and is_whole
            and _lines(answer.stdout.decode("utf-8", "replace")) == _lines(expected)
        )


def _lines(text: str) -> list[str]:
    """Split without white space at ends of lines, and empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _error(reply: Any) -> str:
    error = reply.get("error") if isinstance(reply, dict) else None
    return f"does not run: {error!s:.500}" if error else "gave no reply"


def _tell(answer: Answer, fault: str | None) -> None:
    tell(shown(answer.stdout, answer.stdout_bytes))
    tell(shown(answer.stderr, answer.stderr_bytes))
    if fault:
        tell(f"The code {fault}.\n")
