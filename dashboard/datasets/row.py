"""A row: a prompt, an answer and extra columns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import IO, Any, Protocol

from trainer.rewards.rule import Answer, Message, answers_of, as_answer, message_text

Prompt = str | list[Message]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A prompt is text, or chat messages with role and content.

    Messages keep what else they have, such as tool_calls. Of several answers any is
    right; a list of one is that text, and an empty one no answer.
    """

    prompt: Prompt
    answer: Answer | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    left_empty: tuple[str, ...] = ()  # columns whose value JSON does not have

    def __post_init__(self) -> None:
        if isinstance(self.answer, list):
            object.__setattr__(self, "answer", as_answer(self.answer))

    def canonical(self, columns: str | None = None, prompt: str | None = None) -> str:
        """Write the line of JSON that equal rows share; also the form the trainer
        reads.

        `columns` is `columns_as_json` of the row's, and `prompt` its `prompt_as_json`,
        where the caller has them already.
        """
        if columns is None:
            columns = columns_as_json(self.columns)
        if prompt is None:
            prompt = prompt_as_json(self.prompt)
        answer = as_json(self.answer)
        return f'{{"answer":{answer},"columns":{columns},"prompt":{prompt}}}'


def question_of(prompt: Prompt) -> str:
    """Return the prompt's text; of a chat, its last user message."""
    if isinstance(prompt, str):
        return prompt
    asked = [turn for turn in prompt if turn["role"] == "user"]
    return message_text((asked or prompt)[-1])


# Created once: json.dumps would create one for each call.
as_json = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode


_in_order = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode


def prompt_as_json(prompt: Prompt) -> str:
    """Write a prompt with the keys of each message sorted, and those inside, such as a
    tool call's arguments, in their order, in which a chat template may write them.
    """
    if isinstance(prompt, str):
        return as_json(prompt)
    return _in_order([dict(sorted(message.items())) for message in prompt])


def columns_as_json(columns: dict[str, Any]) -> str:
    return as_json(_as_stored(columns))


def _as_stored(value: Any) -> Any:
    """Return the value as jsonb returns it: numbers are decimals, so 1e16 becomes an
    integer and -0.0 becomes 0.0. The hash of this form stays the same after storage.
    """
    if isinstance(value, float):
        return int(Decimal(repr(value))) if abs(value) >= 1e16 else value + 0.0
    if isinstance(value, dict):
        return {key: _as_stored(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_as_stored(inner) for inner in value]
    return value


def stored_answer(answer: Answer | None) -> str | None:
    """Convert an answer to a text column's value: several answers as JSON."""
    return as_json(answer) if isinstance(answer, list) else answer


def read_answer(stored: str | None, *, is_list: bool) -> Answer | None:
    """Read what `stored_answer` made."""
    if stored is None or not is_list:
        return stored
    answers: list[str] = json.loads(stored)
    return answers


class _StoredAnswer(Protocol):
    @property
    def answer(self) -> str | None: ...
    @property
    def answer_is_list(self) -> bool: ...


class WithAnswer:
    """A model that stores an answer as text, and a list of answers as JSON."""

    @property
    def answer_value(self: _StoredAnswer) -> Answer | None:
        return read_answer(self.answer, is_list=self.answer_is_list)

    @property
    def answers(self: _StoredAnswer) -> list[str]:
        """The answers, each of which is right."""
        return answers_of(read_answer(self.answer, is_list=self.answer_is_list))

    @property
    def answer_text(self: _StoredAnswer) -> str:
        return " or ".join(
            answers_of(read_answer(self.answer, is_list=self.answer_is_list))
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenRows:
    num_rows: int
    sha256: str


def write_content(rows: Iterable[Row], file: IO[bytes]) -> WrittenRows:
    """Write rows as canonical JSON lines; the hash is that of the bytes."""
    digest = hashlib.sha256()
    num_rows = 0
    for row in rows:
        line = row.canonical().encode() + b"\n"
        digest.update(line)
        file.write(line)
        num_rows += 1
    return WrittenRows(num_rows=num_rows, sha256=digest.hexdigest())
