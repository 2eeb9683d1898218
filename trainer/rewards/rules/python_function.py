"""A rule that calls a user's function in a sandbox, in the form that they have it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from trainer.rewards.function_forms import (
    EXAMPLES,
    LEGACY,
    TRL,
    RewardFunction,
    has_function,
    none_recognised,
    recognise,
    select,
)
from trainer.rewards.rule import (
    Example,
    NotApplicable,
    Outcome,
    Params,
    Rule,
    Sample,
    Unscorable,
    measure,
    shown,
    tell,
)
from trainer.rewards.sandbox import pool
from trainer.rewards.sandbox.levels import packages_here
from trainer.rewards.sandbox.limits import (
    MAX_CALL_SECONDS,
    MAX_MEMORY_MB,
    MAX_WALL_SECONDS,
    Limits,
)
from trainer.rewards.sandbox.slot import CallFailed, result_of
from trainer.rewards.terms import without_defaults

LARGEST_SCORE = 1_000
_FIRST = EXAMPLES["cohort"]
MAX_METRICS = 20  # that a function gives beside its score
_MAX_KEY_CHARS = 60


class PythonFunctionParams(Params):
    source: str = Field(
        _FIRST,
        min_length=1,
        max_length=20_000,
        description="A reward function in the form of Cohort, TRL, verl or verifiers. "
        "Return None for no score. Cohort logs what it prints. It has no network.",
    )
    function: str = Field(
        "",
        validate_default=True,
        max_length=100,
        description="Name of the function to call, if the source has several.",
    )
    minimum: float = Field(
        0.0,
        ge=-LARGEST_SCORE,
        le=LARGEST_SCORE,
        description="Lowest number that it returns.",
    )
    maximum: float = Field(
        1.0,
        ge=-LARGEST_SCORE,
        le=LARGEST_SCORE,
        description="Highest number that it returns.",
    )
    timeout_seconds: float = Field(
        5.0,
        ge=0.1,
        le=MAX_WALL_SECONDS,
        title="Time limit",
        description="A completion that takes longer gets no score. A TRL function has "
        "this time for each completion of the group.",
        json_schema_extra={"unit": "seconds"},
    )
    memory_mb: int = Field(
        512,
        ge=128,
        le=MAX_MEMORY_MB,
        title="Memory limit",
        description="Memory limit of a call.",
        json_schema_extra={"unit": "MiB"},
    )

    @model_serializer(mode="wrap")
    def _what_is_asked(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A recipe from before there was a choice keeps its text, and its hash.
        return dict(without_defaults(write(self), function=""))

    @field_validator("source")
    @classmethod
    def _has_a_function(cls, source: str) -> str:
        if not has_function(source):
            raise ValueError(none_recognised(recognise(source)))
        return source

    @field_validator("function")
    @classmethod
    def _can_be_called(cls, function: str, info: ValidationInfo) -> str:
        if "source" in info.data:
            select(info.data["source"], function)
        return function

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if self.minimum >= self.maximum:
            raise ValueError(
                f"The minimum, {self.minimum:g}, must be less than the maximum, "
                f"{self.maximum:g}. Swap them."
            )
        return self

    @property
    def called(self) -> RewardFunction:
        return select(self.source, self.function)


def score_by_function(sample: Sample, params: PythonFunctionParams) -> float:
    """Return the number that the function gives, called in a sandbox.

    No score where it gives None or no number in bounds, raises, or is ended.
    """
    reply = _reply(_question(sample, params), params, num_completions=1)
    if reply.keys() - {"metrics"} != {"value"}:
        raise _without_result()
    value = _checked(reply["value"], params)
    measure(valid_metrics(reply.get("metrics")))
    return value


def score_by_group_function(
    samples: Sequence[Sample], params: PythonFunctionParams
) -> list[Outcome]:
    """Return what a function says of the completions of one prompt, called once for
    all.

    Where it raises, or gives no list of their length, none has a score.
    """
    reply = _reply(_group_question(samples, params), params, len(samples))
    values = reply.get("values")
    if (
        reply.keys() - {"metrics"} != {"values"}
        or not isinstance(values, list)
        or len(values) != len(samples)
    ):
        raise _without_result()
    measure(valid_metrics(reply.get("metrics")))
    return [_outcome(value, params) for value in values]


def _outcome(value: Any, params: PythonFunctionParams) -> Outcome:
    if isinstance(value, dict) and value.keys() == {"error"}:
        return Unscorable(f"The reward function failed: {value['error']!s:.500}.")
    try:
        return _checked(value, params)
    except Unscorable as error:
        return error


def _reply(
    question: Mapping[str, Any], params: PythonFunctionParams, num_completions: int
) -> dict[str, Any]:
    seconds = min(params.timeout_seconds * num_completions, MAX_CALL_SECONDS)
    limits = Limits(wall_seconds=seconds, memory_mb=params.memory_mb)
    try:
        packages = imported_packages(params.source)
        answer = pool.ask("function", [question], limits, packages=packages)
    except pool.SandboxFailed as error:
        raise Unscorable(str(error)) from error
    tell(shown(answer.stdout, answer.stdout_bytes))
    tell(shown(answer.stderr, answer.stderr_bytes))
    try:
        return result_of(answer, limits)
    except CallFailed as failure:
        raise Unscorable(f"The reward function {failure}.") from failure


def _without_result() -> Unscorable:
    return Unscorable(
        "The reward function ended its process without a result. Return a number."
    )


@lru_cache(maxsize=256)
def imported_packages(source: str) -> tuple[str, ...]:
    """Return those that a source imports, of the packages that its sandbox offers."""
    imported = recognise(source).imports
    if not imported:
        return ()
    return tuple(sorted(imported & packages_here(pool.sandbox_level()).keys()))


# What a function is called with


def _question(sample: Sample, params: PythonFunctionParams) -> dict[str, Any]:
    function = params.called
    if function.form == "cohort":
        arguments: dict[str, Any] = {
            "prompt": sample.prompt,
            "completion": sample.text,
            "answer": sample.answer,
            "columns": dict(sample.columns),
        }
        if sample.turns or "turns" in function.names:
            arguments["turns"] = [dict(turn) for turn in sample.turns]
    elif function.form == "verl":
        columns = sample.columns
        truth: Any = sample.answer
        if truth is None:
            model = columns.get("reward_model")
            own = model.get("ground_truth") if isinstance(model, Mapping) else None
            truth = columns.get("ground_truth", own)
        arguments = {
            "data_source": columns.get("data_source"),
            "solution_str": sample.text,
            "ground_truth": truth,
            "extra_info": columns.get("extra_info") or {},
        }
    else:
        arguments = _verifiers_arguments(sample, function)
    question = {"source": params.source, "arguments": arguments}
    if function.name != LEGACY:
        question["function"] = function.name
    if function.form == "verl":
        question["gives"] = "verl"
    return question


def _verifiers_arguments(sample: Sample, function: RewardFunction) -> dict[str, Any]:
    columns = sample.columns
    arguments = {
        "prompt": _prompt(sample),
        "completion": _completion(sample),
        "answer": sample.answer if sample.answer is not None else "",
        "info": columns.get("info") or {},
        "task": columns.get("task") or "default",
    }
    arguments_and_state = arguments | {"state": arguments}
    if function.takes_rest:
        return arguments_and_state
    return {
        name: value
        for name, value in arguments_and_state.items()
        if name in function.names
    }


def _prompt(sample: Sample) -> Any:
    """Messages where the row's prompt is a list of them, else its text."""
    if sample.is_chat:
        return [dict(message) for message in sample.messages]
    return sample.messages[-1]["content"] if sample.messages else sample.prompt


def _completion(sample: Sample) -> Any:
    if sample.turns:
        return [
            {name: turn[name] for name in ("role", "content", "name") if name in turn}
            for turn in sample.turns
        ]
    if sample.is_chat:
        return [{"role": "assistant", "content": sample.text}]
    return sample.text


# Names that datasets give the right answer. A function that asks for one gets the
# row's answer where no column has that name.
ANSWER_NAMES = ("answer", "solution", "ground_truth", "target", "label", "reference")
_RESERVED = TRL | {"prompt", "completion"}


def _group_question(
    samples: Sequence[Sample], params: PythonFunctionParams
) -> dict[str, Any]:
    """Ask as TRL's GRPOTrainer calls a function, for the completions of one row."""
    function, first, number = params.called, samples[0], len(samples)
    named = function.names | function.reads
    arguments: dict[str, Any] = {
        name: [value] * number
        for name, value in first.columns.items()
        if name not in _RESERVED and (function.takes_rest or name in named)
    }
    for name in ANSWER_NAMES:
        is_wanted = name in named or (
            name == "answer" and function.takes_rest and first.answer is not None
        )
        if is_wanted and name not in arguments:
            arguments[name] = [first.answer] * number
    missing = sorted(
        name for name in function.required - _RESERVED if name not in arguments
    )
    if missing:
        raise NotApplicable(
            f"{function.name} takes {missing[0]}, which is no column of the row. It "
            f"has {', '.join(sorted(first.columns)) or 'none'}."
        )
    arguments |= {
        "prompts": [_prompt(sample) for sample in samples],
        "completions": [_completion(sample) for sample in samples],
    }
    arguments |= _token_ids(samples, function)
    # Named, but not read: the recogniser refuses a function that reads them.
    arguments |= dict.fromkeys(
        function.required & {"trainer_state", "environments"}, None
    )
    return {
        "source": params.source,
        "function": function.name,
        "arguments": arguments,
        "gives": "trl",
        "num_completions": number,
    }


def _token_ids(
    samples: Sequence[Sample], function: RewardFunction
) -> dict[str, list[list[int]] | None]:
    ids = [sample.token_ids for sample in samples if sample.token_ids is not None]
    if len(ids) == len(samples):
        return {"completion_ids": [list(token_ids) for token_ids in ids]}
    if "completion_ids" in function.reads:
        raise Unscorable(
            f"{function.name} reads completion_ids. Token IDs are known only while a "
            "run samples, so the function cannot score stored text."
        )
    return {"completion_ids": None} if "completion_ids" in function.required else {}


def reads_token_ids(params: Params) -> bool:
    """Return whether the rule's function looks at the token IDs of completions."""
    return (
        isinstance(params, PythonFunctionParams)
        and "completion_ids" in params.called.reads
    )


# What a function gives


def _checked(value: Any, params: PythonFunctionParams) -> float:
    if value is None:
        raise NotApplicable(
            "The reward function returned None: it does not apply to this row."
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unscorable("The reward function did not return a number.")
    number = _as_float(value)
    if not params.minimum <= number <= params.maximum:
        raise Unscorable(
            f"The reward function returned {number:g}, which is not between "
            f"{params.minimum:g} and {params.maximum:g}. Change its return value, or "
            "the rule's minimum and maximum."
        )
    return number


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def valid_metrics(metrics: Any) -> dict[str, float]:
    """Finite numbers by names that can stand in a metric's."""
    if not isinstance(metrics, dict):
        return {}
    numbers: dict[str, float] = {}
    for key, value in metrics.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        name = "".join(c if c.isalnum() or c in "_-.@" else "_" for c in key)
        if is_number and name and math.isfinite(number := _as_float(value)):
            numbers[name[:_MAX_KEY_CHARS]] = number
        if len(numbers) == MAX_METRICS:
            break
    return numbers


RULE = Rule(
    kind="python_function",
    title="Python function",
    summary="Your own Python function scores the completion, in a sandbox.",
    params_model=PythonFunctionParams,
    score=score_by_function,
    score_group=score_by_group_function,
    compares=lambda params: params.called.judges_groups,
    bounds=lambda params: (params.minimum, params.maximum),
    example_pass=Example(
        sample=Sample("Capital of France?", "It is Paris", "Paris"),
        params={"source": _FIRST},
    ),
    example_fail=Example(
        sample=Sample("Capital of France?", "It is Rome", "Paris"),
        params={"source": _FIRST},
    ),
    is_slow=True,
    needs_sandbox=True,
)
