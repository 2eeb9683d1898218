"""Running code that a model wrote against a row's tests, in a sandbox.

The process that runs the code never knows what is expected of it: it is asked for
values, which are compared here. Asserts that cannot be split into a question and an
expectation are the exception, and are counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from trainer.rewards.code_rows import Asserts, Calls, Programs, Tests
from trainer.rewards.logs import shown, tell
from trainer.rewards.sample import NotApplicable, Unscorable
from trainer.rewards.sandbox import pool
from trainer.rewards.sandbox.formulas import Formula, holds, is_judged_inside
from trainer.rewards.sandbox.inside.plain import encode
from trainer.rewards.sandbox.limits import MEBIBYTE, Limits
from trainer.rewards.sandbox.slot import Answer
from trainer.rewards.sandbox.verdicts import how_it_ended, parsed

# How often code that ends its own process is begun anew, without the step it ended at.
_MAX_STARTS = 4
_PLAN_LIMITS = Limits()
_LEAST_SECONDS = 0.05
# In place of a step at which the code ended its process.
_FAILS = {"code": "raise RuntimeError", "is_value": False}


@dataclass(frozen=True, kw_only=True)
class Result:
    """Which of the tests passed, and how many the code itself could have decided."""

    passed: tuple[bool, ...]
    num_judged_inside: int


@dataclass(frozen=True, kw_only=True)
class _Plan:
    steps: tuple[dict[str, Any], ...]
    formulas: tuple[Formula, ...]


def run_tests(
    code: str, tests: Tests, limits: Limits, *, most: int, entry_point: str | None
) -> Result:
    """
    Args:
        limits: time for all tests of this code together; memory for each process.

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
            f"The row's tests cannot be read: {why}. Correct them, or leave the row "
            "out."
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
    for number, (name, arguments, expected) in enumerate(tests.calls):
        # Some datasets want a method of a class Solution.
        function = f"(Solution().{name} if 'Solution' in globals() else {name})"
        steps.append({"code": f"{function}(*{arguments!r})", "is_value": True})
        formulas.append({"json": number, "value": encode(expected)})
    return _Plan(steps=tuple(steps), formulas=tuple(formulas))


def _run_steps(code: str, steps: Sequence[dict[str, Any]], limits: Limits) -> list[Any]:
    """The replies to the steps, as far as they came; none where the code fails."""
    deadline = time.monotonic() + limits.wall_seconds
    todo = list(steps)
    replies: list[Any] = []
    for _ in range(_MAX_STARTS):
        left = deadline - time.monotonic()
        if left < _LEAST_SECONDS:
            break
        now = replace(limits, wall_seconds=left)
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
    for given, wanted in pairs:
        left = deadline - time.monotonic()
        if left < _LEAST_SECONDS:
            yield False
            continue
        now = replace(
            limits,
            wall_seconds=left,
            output_bytes=min(MEBIBYTE, 4 * len(wanted) + limits.output_bytes),
        )
        answer = pool.ask("program", [{"source": code, "stdin": given}], now)
        _tell(replace(answer, stdout=b"", stdout_bytes=0), how_it_ended(answer, limits))
        is_whole = answer.stdout_bytes == len(answer.stdout)
        yield (
            answer.end == "ended"
            and answer.code == 0
            and is_whole
            and _lines(answer.stdout.decode("utf-8", "replace")) == _lines(wanted)
        )


def _lines(text: str) -> list[str]:
    """Without white space at ends of lines, and empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _error(reply: Any) -> str:
    error = reply.get("error") if isinstance(reply, dict) else None
    return f"does not run: {error!s:.500}" if error else "gave no reply"


def _tell(answer: Answer, fault: str | None) -> None:
    tell(shown(answer.stdout, answer.stdout_bytes))
    tell(shown(answer.stderr, answer.stderr_bytes))
    if fault:
        tell(f"The code {fault}.\n")
