"""Completions of TRL, verl, verifiers and Cohort, and the items of all files.

TRL (GRPOTrainer with log_completions): one Parquet file a step,
`completions/completions_00005.parquet`, with step (text in older versions), prompt and
completion (text or messages), a column for each reward function and for log_extra, and
advantage (from version 0.18). Versions before 0.16 have the total as reward.

verl (trainer.rollout_data_dir, validation_data_dir): `5.jsonl`, with input, output,
gts (not in older versions), score, step, and other outputs of the reward function.

verifiers 0.4 and prime-rl: `traces.jsonl`, an episode a line with the traces of its
agents. A trace is a tree of messages; each has its parent, ids and mask of its tokens,
and log-probs and advantages of those that were sampled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from cohort.formats.prime_rl import OTHER_BRANCHES, read_trace
from cohort.lines import (
    Completion,
    guess_turns,
    number,
    part_text,
    rule_name,
    turns_of,
    write_turns,
)
from dashboard.datasets.parsing.records import (
    Record,
    Refusal,
    Unusable,
    broken_text,
    check_value,
    quote,
)
from dashboard.datasets.row import Prompt, as_json
from dashboard.project.database import clean_json
from trainer.events import EndReason, TurnRecord
from trainer.rewards.rule import Answer, as_answer, message_text

ENDS: tuple[EndReason, ...] = get_args(EndReason)
MAX_STEP = MAX_COUNT = 2**31 - 1
LATEST_TIME = 253_402_300_800  # the year 10000
_TRL_OWN = {"step", "prompt", "completion", "reward", "advantage", "image", "images"}
_VERL_OWN = {"input", "output", "gts", "score", "step"}
_TURNS = TypeAdapter(list[TurnRecord])
# Of a message, beside role and content.
_KEPT = ("tool_calls", "tool_call_id", "name", "reasoning_content")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A completion."""

    step: int
    prompt: Prompt
    completion: str
    answer: Answer | None = None
    reward: float | None = None  # the total, where the file has one
    scores: dict[str, float | None] = field(default_factory=dict)  # by column
    advantage: float | None = None
    num_tokens: int | None = None
    mean_logprob: float | None = None
    end_reason: EndReason = "unknown"
    turns: list[dict[str, Any]] = field(default_factory=list)  # as TurnRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Values of a step, by Cohort's names."""

    step: int
    time: float | None  # seconds since 1970
    values: dict[str, float]


Item = Sample | Point


def as_tree(item: Item) -> dict[str, Any]:
    """Convert it to JSON, which `from_tree` reads."""
    tree = {name: getattr(item, name) for name in item.__dataclass_fields__}
    return tree | {"is_point": isinstance(item, Point)}


def from_tree(tree: dict[str, Any]) -> Item:
    return Point(**tree) if tree.pop("is_point") else Sample(**tree)


class Bad(ValueError):
    """An invalid value: its column, the problem, the remedy."""

    def __init__(self, column: str, value: Any, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.column, self.value = column, value
        self.problem, self.remedy = problem, remedy


def tool_of(columns: Iterable[str]) -> str | None:
    """Recognise the tool by a row's columns; None: these are not completions."""
    names = set(columns)
    if {"prompt", "completion", "prompt_index", "position", "rules"} <= names:
        return "Cohort"
    if {"input", "output", "score"} <= names:
        return "verl"
    if {"nodes", "rewards", "agent"} <= names:
        return "verifiers"
    return "TRL" if {"prompt", "completion"} <= names else None


def read_sample(tool: str, record: Record) -> Sample | Refusal:
    try:
        return _READERS[tool](record.values)
    except Bad as bad:
        return Refusal(
            line=record.line,
            column=bad.column,
            value=quote(bad.value),
            problem=bad.problem,
            remedy=bad.remedy,
        )


def _trl(values: dict[str, Any]) -> Sample:
    text, turns = _completion(values.get("completion"), "completion")
    return Sample(
        step=_step(values),
        prompt=_prompt(values.get("prompt"), "prompt"),
        completion=text,
        turns=turns,
        reward=_number(values, "reward"),
        scores=_scores(values, _TRL_OWN),
        advantage=_number(values, "advantage"),
    )


def _verl(values: dict[str, Any]) -> Sample:
    score = _number(values, "score")
    text = _text(values.get("output"), "output")
    return Sample(
        step=_step(values),
        prompt=_prompt(values.get("input"), "input"),
        completion=text,
        turns=write_turns(Completion(text=text, turns=guess_turns(text)))[1],
        answer=_answer(values.get("gts"), "gts"),
        reward=score,
        scores={"score": score} | _scores(values, _VERL_OWN),
    )


def _cohort(values: dict[str, Any]) -> Sample:
    answer = values.get("answer")
    if values.get("answer_is_list") in (True, "true"):
        with suppress(ValueError):
            answer = json.loads(str(answer))
    try:
        rules = dict(values.get("rules") or {})  # in older Parquet a list of pairs
    except (TypeError, ValueError):
        raise Bad(
            "rules",
            values["rules"],
            "The value does not map rules to scores.",
            "Write {name: score, …}.",
        ) from None
    for name in rules:
        _text(name, "rules")
    return Sample(
        step=_step(values),
        prompt=_prompt(values.get("prompt"), "prompt"),
        completion=_text(values.get("completion"), "completion"),
        answer=_answer(answer, "answer"),
        reward=_number(values, "reward"),
        scores={rule_name(name): _finite(score) for name, score in rules.items()},
        advantage=_number(values, "advantage"),
        num_tokens=_count(values, "num_tokens"),
        end_reason=next(
            (end for end in ENDS if end == values.get("end_reason")), "unknown"
        ),
        turns=_turns(values.get("turns")),
    )


def _verifiers(values: dict[str, Any]) -> Sample:
    """Read the longest branch; the completion begins with what the model said first."""
    try:
        trace = read_trace(values)
        work = (values.get("run") or {}).get("work") or {}
        step = values.get("step", work.get("step", 0))  # an evaluation has none
    except (TypeError, LookupError, AttributeError, ValueError, OverflowError):
        raise Bad(
            "nodes",
            values["nodes"],
            "The value is not a trace of verifiers in which a model said something.",
            "Leave the row out.",
        ) from None
    text, turns = _completion(trace.said, "nodes")
    ids, sampled = trace.num_ids, trace.num_sampled
    # What the template writes before a turn of the policy is the turn's before it.
    before = [n - k if k else 0 for n, k in zip(ids, sampled, strict=True)]
    ends = [
        n - before[0] + k
        for n, k in zip(accumulate(ids), [*before[1:], 0], strict=True)
    ]
    return Sample(
        step=_step({"step": step}),
        prompt=_prompt(trace.prompt, "nodes"),
        completion=text,
        answer=_answer(trace.answer, "task"),
        reward=trace.reward,
        scores=trace.scores,
        advantage=trace.advantage,
        num_tokens=sum(sampled) if all(ids) else None,
        mean_logprob=trace.logprob,
        end_reason=trace.end_reason,
        turns=[
            turn | {"token_end": end if all(ids) else None}
            for turn, end in zip(turns, ends, strict=False)
        ],
    )


_READERS = {"TRL": _trl, "verl": _verl, "verifiers": _verifiers, "Cohort": _cohort}


def _turns(value: Any) -> list[dict[str, Any]]:
    try:
        turns = _TURNS.validate_python(value or [], extra="ignore")
    except ValidationError:
        raise Bad(
            "turns",
            value,
            "The value is not a list of turns.",
            "Write [{author, start, end, …}, …] as an export has it.",
        ) from None
    return [clean_json(turn.model_dump(exclude_defaults=True)) for turn in turns]


def _step(values: dict[str, Any]) -> int:
    value = values.get("step")
    try:
        step = int(value) if isinstance(value, str) else value
    except ValueError:
        step = None
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step <= MAX_STEP:
        raise Bad(
            "step",
            value,
            "The step is not a non-negative integer.",
            "Add a column “step” with the step at which each row was sampled.",
        )
    return step


def _count(values: dict[str, Any], column: str) -> int | None:
    count = values.get(column)
    if count is None:
        return None
    is_whole = isinstance(count, int) and not isinstance(count, bool)
    if not is_whole or not 0 <= count <= MAX_COUNT:
        raise Bad(
            column,
            count,
            "The token count is not a non-negative integer.",
            f"Write a number from 0 to {MAX_COUNT:,}, or leave it empty.",
        )
    return int(count)


def _prompt(value: Any, column: str) -> Prompt:
    if isinstance(value, str) or not _is_chat(value):
        return _text(value, column)
    messages = [
        {
            "role": _text(message["role"], column),
            "content": _content(message.get("content"), column),
            # Parquet has every field in each message.
            **{name: message[name] for name in _KEPT if message.get(name)},
        }
        for message in value
    ]
    try:
        check_value(messages)
    except Unusable as error:
        raise Bad(column, error.value, error.problem, error.remedy) from None
    return messages


def _text(value: Any, column: str) -> str:
    """Read the text of messages; several are written under their roles."""
    if isinstance(value, str):
        if broken := broken_text(value):
            raise Bad(column, value, f"The text contains {broken}.", "Remove it.")
        return value
    if _is_chat(value):
        messages = [
            (
                _text(m["role"], column),
                _text(message_text(m | {"content": content}), column),
            )
            for m in value
            for content in [_content(m.get("content"), column)]
        ]
        if len(messages) == 1:
            return messages[0][1]
        return "\n\n".join(f"{role}: {content}" for role, content in messages)
    raise Bad(
        column,
        value,
        "The value is neither text nor chat messages.",
        "Write it as text.",
    )


def _completion(value: Any, column: str) -> tuple[str, list[dict[str, Any]]]:
    """Read text, or messages with the turns of an episode."""
    text, turns = _text(value, column), turns_of(value)
    text, trees = write_turns(Completion(text="" if turns else text, turns=turns))
    return _text(text, column), trees


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(m, dict) and "role" in m for m in value)
    )


def _content(value: Any, column: str) -> str:
    """Return the text of content parts (text, image, …)."""
    if value is None:
        return ""
    if isinstance(value, list):
        value = "".join(map(part_text, value))
    return _text(value, column)


def _answer(value: Any, column: str) -> Answer | None:
    """Read an answer; of a list, any is right."""
    if isinstance(value, list):
        return as_answer([_written(item, column) for item in value])
    return None if value is None else _written(value, column)


def _written(value: Any, column: str) -> str:
    if isinstance(value, str):
        return _text(value, column)
    try:
        return as_json(value)
    except (TypeError, ValueError):
        raise Bad(
            column, value, "The value cannot be written as JSON.", "Write it as text."
        ) from None


def _number(values: dict[str, Any], column: str) -> float | None:
    value = values.get(column)
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value) if value.strip() else None
    if value is None or isinstance(value, int | float):
        return _finite(value)
    raise Bad(
        column,
        value,
        "The value is not a number.",
        "Write a number, or leave it empty.",
    )


def _finite(value: Any) -> float | None:
    return number(value) if isinstance(value, int | float) else None


def _scores(values: dict[str, Any], own: set[str]) -> dict[str, float | None]:
    """Read every other numeric column; text can be a number only in CSV."""
    return {
        rule_name(name): _finite(value)
        for name, value in values.items()
        if name not in own and isinstance(value, int | float | None)
    }


def default_weights(tool: str, names: Iterable[str]) -> dict[str, float]:
    """TRL sums its reward functions; verl's other outputs are not part of the score."""
    if tool == "verl":
        return {name: float(name == "score") for name in names}
    return {name: float(name != OTHER_BRANCHES) for name in names}


def reward_of(sample: Sample, weights: Mapping[str, float | None]) -> float | None:
    """Return the file's total, else Σ weight × score over what has a score.

    None: nothing has. A weight of None: the column is not a rule.
    """
    if sample.reward is not None:
        return sample.reward
    parts = [
        weight * score
        for name, score in sample.scores.items()
        if score is not None and (weight := weights.get(name))
    ]
    return sum(parts) if parts else None
