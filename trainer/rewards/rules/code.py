"""A rule that runs a completion's code in a sandbox."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainer.rewards.code_running import read_tests, run_tests
from trainer.rewards.extraction import (
    TAG_NAME,
    find_part,
    reply_of,
    thinking_field,
)
from trainer.rewards.rule import (
    Example,
    NotApplicable,
    Params,
    Rule,
    Sample,
    column_of,
    tell,
)
from trainer.rewards.sandbox.limits import MAX_MEMORY_MB, MAX_WALL_SECONDS, Limits

_LANGUAGES = ("python", "py", "python3", "ipython", "ipython3")


class CodeTestsParams(Params):
    tests_column: str = Field(
        "tests",
        min_length=1,
        max_length=200,
        description="Column with the tests: text with asserts or check(candidate), a "
        "list of such texts, or a list of objects with input and output "
        "for programs. With fn_name, input and output are those of a "
        "function.",
    )
    entry_point_column: str = Field(
        "entry_point",
        min_length=1,
        max_length=200,
        description="Column with the function's name, for tests with check(candidate).",
    )
    code_in: Literal["fence", "tags", "whole"] = Field(
        "fence",
        title="Code location",
        description="The last Python block between ``` and ```, else the last block "
        "without a language; the last pair of tags; or the whole completion.",
    )
    tag: str = Field(
        "answer", pattern=TAG_NAME, description="Tag name without brackets."
    )
    credit: Literal["share", "all"] = Field(
        "share",
        description=("share: share of tests that pass. all: 1 if all pass, else 0."),
    )
    max_tests: int = Field(
        20, ge=1, le=200, description="Maximum number of a row's tests to run."
    )
    read_thinking: bool = thinking_field()
    judged_inside: Literal["counted", "refused"] = Field(
        "counted",
        title="Unsplit asserts",
        description="Asserts that cannot be split into a call and its expected value "
        "run in the code's own process, which could then cheat: loops, "
        "try, isinstance, all(). refused: a row with such an assert gets "
        "no score.",
    )
    timeout_seconds: float = Field(
        5.0,
        ge=0.1,
        le=MAX_WALL_SECONDS,
        title="Time limit",
        description="For all tests of a completion together. Tests that have not "
        "finished by then fail.",
        json_schema_extra={"unit": "seconds"},
    )
    memory_mb: int = Field(
        512,
        ge=128,
        le=MAX_MEMORY_MB,
        title="Memory limit",
        description="Memory limit of the code.",
        json_schema_extra={"unit": "MiB"},
    )


def score_code(sample: Sample, params: CodeTestsParams) -> float:
    """Return the share of tests that pass, or whether all do; 0 without code.

    Code that fails, hangs or ends its process fails tests. No score where the tests
    cannot be read or no sandbox can be had.
    """
    tests = read_tests(sample, params.tests_column, most=params.max_tests)
    reply = reply_of(sample, read_thinking=params.read_thinking)
    code = find_part(reply, params.code_in, tag=params.tag, languages=_LANGUAGES)
    if not code:
        return 0.0
    entry_point = column_of(sample.columns, params.entry_point_column)
    is_name = isinstance(entry_point, str) and entry_point.isidentifier()
    result = run_tests(
        code,
        tests,
        Limits(wall_seconds=params.timeout_seconds, memory_mb=params.memory_mb),
        most=params.max_tests,
        entry_point=entry_point if is_name else None,
    )
    failed = [str(n) for n, is_fine in enumerate(result.passed, 1) if not is_fine]
    text = f"{sum(result.passed)} of {len(result.passed)} tests passed"
    if failed:
        text += f"; failed: {', '.join(failed)}"
    if result.num_judged_inside:
        text += (
            f"; {result.num_judged_inside} ran in the code's own process, which "
            "could cheat"
        )
    tell(f"{text}.\n")
    if result.num_judged_inside and params.judged_inside == "refused":
        raise NotApplicable(
            f"{result.num_judged_inside} of the row's {len(result.passed)} tests "
            "would run in the code's own process, which the rule refuses. Write them "
            "as assert f(…) == value."
        )
    num_passed = sum(result.passed)
    if params.credit == "all":
        return float(num_passed == len(result.passed))
    return num_passed / len(result.passed)


_TESTS = {"tests": ["assert add(2, 3) == 5", "assert add(-1, 1) == 0"]}
CODE_TESTS = Rule(
    kind="code_tests",
    title="Code tests",
    summary="The completion's Python code passes the row's tests, run in a sandbox.",
    params_model=CodeTestsParams,
    score=score_code,
    checks_task=True,
    example_pass=Example(
        sample=Sample(
            "Write add(a, b).",
            "```python\ndef add(a, b):\n    return a + b\n```",
            None,
            _TESTS,
        )
    ),
    example_fail=Example(
        sample=Sample(
            "Write add(a, b).",
            "```python\ndef add(a, b):\n    return a * b\n```",
            None,
            _TESTS,
        )
    ),
    is_slow=True,
    needs_sandbox=True,
)
