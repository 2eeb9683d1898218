"""Which column is the prompt, which the answer, which are kept as extra columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.datasets.parsing.records import (
    Record,
    Refusal,
    Unusable,
    check_value,
    quote,
)
from dashboard.datasets.row import Prompt, Row

# As published datasets name them, the likeliest first. An Alpaca row's "input" is often
# empty, so its "instruction" comes before.
PROMPT_NAMES = (
    "prompt",
    "question",
    "problem",
    "query",
    "messages",
    "conversations",
    "conversation",
    "instruction",
    "input",
    "text",
)
ANSWER_NAMES = (
    "answer",
    "final_answer",
    "expected_answer",
    "ground_truth",
    "correct_answer",
    "reference_answer",
    "answerkey",
    "solution",
    "canonical_solution",
    "expected",
    "target",
    "label",
    "correct",
    "output",
    "response",
)
ROLES = ("system", "user", "assistant", "tool")
# How ShareGPT's {"from": …, "value": …} calls them.
SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "tool": "tool",
    "observation": "tool",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Mapping:
    """
    >>> Mapping(prompt="question", answer="solution", columns=("level",))
    """

    prompt: str
    answer: str | None = None
    columns: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "answer": self.answer,
            "columns": list(self.columns),
        }

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Mapping:
        """What `as_json` made."""
        return cls(**{**tree, "columns": tuple(tree["columns"])})


def guess_mapping(names: Sequence[str], before: Mapping | None = None) -> Mapping:
    """As the version before has it, then by name; failing that, the first column is
    the prompt."""
    if before and before.prompt in names:
        prompt = before.prompt
    else:
        prompt = _first_named(names, PROMPT_NAMES) or names[0]
    others = [name for name in names if name != prompt]
    answer = _first_named(others, ANSWER_NAMES)
    if before and before.answer in others:
        answer = before.answer
    columns = tuple(name for name in others if name != answer)
    return Mapping(prompt=prompt, answer=answer, columns=columns)


def _first_named(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    by_lower = {name.lower().strip(): name for name in names}
    return next((by_lower[name] for name in wanted if name in by_lower), None)


def map_record(record: Record, mapping: Mapping, *, is_text: bool) -> Row | Refusal:
    """The record's row. `is_text`: the file has no types, as CSV and TSV have none."""
    column = mapping.prompt
    try:
        prompt = _prompt(
            _value(record, column, "Add it, remove the row, or choose another column.")
        )
        answer = None
        if mapping.answer is not None:
            column = mapping.answer
            answer = _answer(
                _value(record, column, "Add it, remove the row, or choose “no answer”.")
            )
        columns = {}
        for column in mapping.columns:
            value = record.values.get(column)
            value = _typed(value) if is_text else value
            check_value(value)
            columns[column] = value
    except Unusable as error:
        return Refusal(
            line=record.line,
            row=record.row,
            column=column,
            value=quote(error.value) if column in record.values else "",
            problem=error.problem,
            remedy=error.remedy,
        )
    return Row(prompt=prompt, answer=answer, columns=columns)


def _value(record: Record, column: str, remedy: str) -> Any:
    """A missing column is not the same error as a null."""
    if column not in record.values:
        raise Unusable(f'The row has no column "{column}".', remedy, None)
    return record.values[column]


def _prompt(value: Any) -> Prompt:
    check_value(value)
    if isinstance(value, list) and value:
        return _messages(value)
    if not isinstance(value, str):
        raise Unusable(
            "The prompt is neither text nor a list of chat messages.",
            "Choose another column as the prompt, or correct the row.",
            value,
        )
    if not value.strip():
        raise Unusable("The prompt is empty.", "Fill it in, or remove the row.", value)
    return value


def _messages(value: list[Any]) -> list[dict[str, str]]:
    messages = [_from_sharegpt(message) for message in value]
    for message in messages:
        _check_message(message)
    if messages[-1]["role"] == "assistant":
        raise Unusable(
            "The last message has the role assistant: there is nothing to complete.",
            "Remove it, or move it to the answer column.",
            messages[-1]["content"],
        )
    return messages


def _from_sharegpt(message: Any) -> Any:
    """A message with from and value as one with role and content."""
    if not isinstance(message, dict) or set(message) != {"from", "value"}:
        return message
    sender = message["from"]
    if not isinstance(sender, str) or sender not in SHAREGPT_ROLES:
        raise Unusable(
            "A chat message has an unknown role.",
            f"Use one of {', '.join(SHAREGPT_ROLES)}, or write it as "
            '{"role": "user", "content": "…"}.',
            sender,
        )
    return {"role": SHAREGPT_ROLES[sender], "content": message["value"]}


def _check_message(message: Any) -> None:
    if not isinstance(message, dict) or set(message) != {"role", "content"}:
        raise Unusable(
            "A chat message must have exactly two keys, role and content.",
            'Write it as {"role": "user", "content": "…"}.',
            message,
        )
    if message["role"] not in ROLES:
        raise Unusable(
            "A chat message has an unknown role.",
            f"Use one of {', '.join(ROLES)}.",
            message["role"],
        )
    if not isinstance(message["content"], str):
        raise Unusable(
            "The content of a chat message is not text.",
            "Write it as one string.",
            message["content"],
        )


def _answer(value: Any) -> str:
    check_value(value)
    if value is None or value == "":
        raise Unusable(
            "The row has no answer.",
            "Fill it in, remove the row, or choose “no answer”.",
            value,
        )
    if isinstance(value, list | dict):
        raise Unusable(
            "The answer is a list or an object, not text or a number.",
            "Keep it as an extra column instead, or write the answer as text.",
            value,
        )
    return value if isinstance(value, str) else json.dumps(value)


def _typed(cell: Any) -> Any:
    """A CSV cell as JSON where writing it again gives the same text.

    So `[3, 5]` becomes a list and `24` a number, while `007` stays a text.
    """
    if not isinstance(cell, str) or cell[:1] not in ("[", "{", "-", *"0123456789"):
        return cell
    try:
        value = json.loads(cell)
        check_value(value)
    except (ValueError, RecursionError):
        return cell
    is_tree = isinstance(value, list | dict)
    return value if is_tree or json.dumps(value) == cell else cell
