"""Rows, prompts and the order of training on them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from cohort.lines import IMAGE
from trainer.config import DataConfig
from trainer.rewards.rule import (
    Answer,
    Message,
    conversation,
    fill_template,
    message_text,
    read_answer,
    split_prefill,
)
from trainer.rewards.scoring import NO_TOKENS, SpecialTokens
from trainer.seeding import derive, permutation
from trainer.tokenizers import first_line, special_texts


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of rows.jsonl.

    >>> Row(index=0, prompt="3 5 7 > 1", answer=None, columns={"target": 1})
    """

    index: int
    prompt: str | tuple[Message, ...]
    answer: Answer | None
    columns: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A row as the model sees it."""

    row: Row
    text: str
    token_ids: tuple[int, ...]
    # That the text was made of, without the answer that the last of them begins.
    messages: tuple[Message, ...] = ()
    begun: str = ""  # that answer, with which the text ends
    # Of the tokenizer, as they may follow a completion.
    special_tokens: SpecialTokens = field(default=NO_TOKENS, repr=False, compare=False)

    @property
    def index(self) -> int:
        return self.row.index


def read_rows(path: Path, *, setting: str = "data.rows") -> list[Row]:
    """Read a dataset of one JSON object a line; ValueError names the line at fault.

    `setting` is what the path was taken from.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(
            f"File {path} not found. Set {setting} to a JSONL file of prompts."
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 (byte {error.start}). Save it as UTF-8."
        ) from None
    lines = text.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise ValueError(f"{path} has no rows. Write one JSON object per line.")
    return [_read_row(line, index, path) for index, line in enumerate(lines)]


def _read_row(line: str, index: int, path: Path) -> Row:
    where = f"{path.name}, line {index + 1}"
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error.msg}: {line[:80]!r}.") from None
    except (ValueError, RecursionError):
        raise ValueError(
            f"{where} is nested too deeply or contains a number that is too long: "
            f"{line[:80]!r}. Correct or remove it."
        ) from None
    if not isinstance(fields, dict) or "prompt" not in fields:
        raise ValueError(f"{where} has no prompt: {line[:80]!r}.")
    prompt, columns = fields["prompt"], fields.get("columns") or {}
    if isinstance(prompt, list) and all(_is_message(turn) for turn in prompt):
        prompt = tuple(prompt)
    if not prompt or not isinstance(prompt, str | tuple):
        raise ValueError(
            f"{where}: the prompt must be text or a list of messages with role and "
            f"content, or tool_calls; got {json.dumps(fields['prompt'])[:80]}."
        )
    if IMAGE in json.dumps(prompt, ensure_ascii=False):
        raise ValueError(f"{where} has an image; Cohort trains on texts only.")
    try:
        answer = read_answer(fields.get("answer"))
    except ValueError as error:
        raise ValueError(f"{where}: {error}.") from None
    if not isinstance(columns, dict):
        raise ValueError(
            f"{where}: columns must be an object; got {json.dumps(columns)[:80]}."
        )
    return Row(index=index, prompt=prompt, answer=answer, columns=columns)


def _is_message(turn: Any) -> bool:
    """Role and content; a message that calls tools may have no content."""
    if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
        return False
    calls, content = turn.get("tool_calls"), turn.get("content")
    if calls is not None and not (
        isinstance(calls, list) and all(isinstance(call, dict) for call in calls)
    ):
        return False
    return isinstance(content, str) or (content is None and bool(calls))


def split_rows(
    rows: Sequence[Row], *, num_eval_rows: int, seed: int
) -> tuple[list[Row], list[Row]]:
    """Return rows to train on and rows held out; the seed draws which."""
    if num_eval_rows >= len(rows):
        raise ValueError(
            f"{num_eval_rows} held-out prompts leave none of the {len(rows)} rows to "
            "train on. Lower data.num_eval_rows, or add rows."
        )
    order = permutation(derive(seed, "held-out"), len(rows))
    held_out = set(order[:num_eval_rows])
    train = [row for index, row in enumerate(rows) if index not in held_out]
    return train, [rows[index] for index in sorted(held_out)]


@dataclass(frozen=True)
class DataOrder:
    """The prompts of a step: a new permutation in each epoch.

    The remainder of an epoch that does not fill a step is dropped, so no prompt occurs
    twice in a step. The order depends only on seed and step, so a resumed run continues
    it.
    """

    num_rows: int
    prompts_per_step: int
    seed: int

    def __post_init__(self) -> None:
        if self.prompts_per_step > self.num_rows:
            raise ValueError(
                f"A step needs {self.prompts_per_step} distinct prompts, but there "
                f"are {self.num_rows} rows to train on. Lower "
                "rollout.prompts_per_step or data.num_eval_rows, or add rows."
            )

    @property
    def steps_per_pass(self) -> int:
        return self.num_rows // self.prompts_per_step

    def places(self, step: int) -> list[int]:
        """Return the rows of a step, steps counted from 1."""
        assert step >= 1
        epoch, index = divmod(step - 1, self.steps_per_pass)
        order = permutation(derive(self.seed, "order", epoch), self.num_rows)
        first = index * self.prompts_per_step
        return order[first : first + self.prompts_per_step]

    def round_indices(self, step: int, turn: int) -> list[int]:
        """Return the rows of a step's round of sampling: its own in round 0, then
        others.

        No row occurs in two rounds of a step; when all have occurred there are none.
        """
        own = self.places(step)
        if turn == 0:
            return own
        order = permutation(derive(self.seed, "refill", step), self.num_rows)
        taken = set(own)
        others = [index for index in order if index not in taken]
        return others[(turn - 1) * self.prompts_per_step :][: self.prompts_per_step]


def tools_of(row: Row) -> list[dict[Any, Any]]:
    """Schemas of the tools that a row's chat may call: column `tools`, or its JSON.

    A column of something else, such as names, is none of the chat template's.

    Raises:
        ValueError: it begins as such a list, and is none.
    """
    column = tools = row.columns.get("tools")
    is_broken = False
    if isinstance(column, str) and column.lstrip()[:1] == "[":
        try:
            tools = json.loads(column)
        except (ValueError, RecursionError):
            is_broken = True
    items = tools if isinstance(tools, list) else []
    kinds = {isinstance(item, dict) for item in items}
    if is_broken or len(kinds) == 2:
        raise ValueError(
            f"Column tools of row {row.index} (line {row.index + 1}) must be a list of "
            f"JSON schemas; got {json.dumps(column)[:80]}. Correct or rename the "
            "column."
        )
    if kinds != {True}:
        return []
    # A database may have sorted the keys of a list, and not those of its text.
    return items if isinstance(column, str) else [_in_order(item) for item in items]


_SCHEMA_KEYS = ("type", "function", "name", "description", "parameters", "properties")


def _in_order(schema: Any) -> Any:
    """Return a schema with its keys in the order in which models have seen them."""
    if isinstance(schema, list):
        return [_in_order(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    first = [key for key in _SCHEMA_KEYS if key in schema]
    return {key: _in_order(schema[key]) for key in dict.fromkeys([*first, *schema])}


def uses_chat_template(tokenizer: PreTrainedTokenizerBase, config: DataConfig) -> bool:
    has_one = getattr(tokenizer, "chat_template", None) is not None
    return config.chat_template == "auto" and has_one


# A template is a model's own program: it raises what it likes, such as that it knows no
# system role, and fails as Python does at what it did not expect.
_TEMPLATE_ERRORS = (
    TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    MemoryError,
)


def apply_chat_template(
    tokenizer: PreTrainedTokenizerBase,
    config: DataConfig,
    messages: Sequence[Message],
    *,
    tools: list[dict[Any, Any] | Callable[..., Any]] | None,
    where: str,
    remedy: str = "",
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> str:
    """Return the text of a chat.

    Raises:
        ValueError: the template fails on `where`; the sentence ends with `remedy`.
    """
    try:
        text = tokenizer.apply_chat_template(
            list(messages),
            tools=tools,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **config.chat_template_kwargs,
        )
    except _TEMPLATE_ERRORS as error:
        roles = ", ".join(turn["role"] for turn in messages)
        raise ValueError(
            f"The model's chat template failed on {where}, which has messages with the "
            f"roles {roles}: {first_line(error)[:300]}.{remedy}"
        ) from error
    assert isinstance(text, str)
    return text


# A template may trim the text that a message begins with, split it at its thinking, or
# leave the thinking out. So it gets a word, which the text then replaces.
_STAND_IN = "begun"
# Qwen3's template, among others, puts this before a last answer without thinking. It
# stays, as the model learned it, unless the row's own text begins with thinking.
_NO_THINKING = re.compile(r"<think>\s*</think>\s*\Z")


class PromptRenderer:
    """Turns rows into the token ids that the model continues."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        config: DataConfig,
        *,
        num_embeddings: int | None = None,  # of the model; None: not known
        # Of an environment: schemas of its tools, and what it puts behind a row's own
        # messages.
        tools: Sequence[dict[str, Any]] = (),
        opening: Callable[[Row], Sequence[Message]] = lambda _row: (),
    ) -> None:
        self._tools, self._opening = tools, opening
        self._tokenizer = tokenizer
        self._config = config
        self._num_embeddings = num_embeddings
        self._special_tokens = SpecialTokens.of(special_texts(tokenizer))
        self._uses_chat_template = uses_chat_template(tokenizer, config)
        options = config.chat_template_kwargs if config.chat_template == "auto" else {}
        template = str(getattr(tokenizer, "chat_template", None) or "")
        read = set(re.findall(r"\w+", template))
        if unread := ", ".join(sorted(options.keys() - read)):
            raise ValueError(
                f"The model's chat template does not read {unread}. Remove it from "
                "data.chat_template_kwargs."
                if template
                else "The model has no chat template. Empty data.chat_template_kwargs."
            )

    def render(self, row: Row) -> Prompt:
        """Return the prompt of a row; ValueError when it is empty or too long."""
        prompt, limit = self._render(row), self._config.max_prompt_tokens
        num_tokens = len(prompt.token_ids)
        if not 0 < num_tokens <= limit:
            raise ValueError(
                f"The prompt of row {row.index} (line {row.index + 1}) has "
                f"{num_tokens} tokens; 1 to {limit} are allowed. Raise "
                "data.max_prompt_tokens or drop the row."
            )
        return prompt

    def token_ids(
        self, row: Row, *, template: str = "{prompt}", context: str = ""
    ) -> tuple[int, ...]:
        """Return the prompt of a row, whatever length is allowed.

        Args:
            template: what the last message of the user becomes, with {prompt}, columns
                and {context} in braces.
        """
        return self._render(row, template=template, context=context).token_ids

    def _render(
        self, row: Row, *, template: str = "{prompt}", context: str = ""
    ) -> Prompt:
        where = f"row {row.index} (line {row.index + 1})"
        messages = conversation(
            row.prompt,
            row.columns,
            system_prompt=self._config.system_prompt,
            prompt_template=self._config.prompt_template,
            where=where,
        )
        messages += self._opening(row)
        if template != "{prompt}":
            last = max(
                (
                    at
                    for at, message in enumerate(messages)
                    if message["role"] == "user"
                ),
                default=len(messages) - 1,
            )
            content = fill_template(
                template,
                message_text(messages[last]),
                {**row.columns, "context": context},
                where=where,
                setting="reference.context_template",
            )
            messages[last] = {**messages[last], "content": content}
        prefix = self._config.completion_prefix
        answered, begun = split_prefill(messages, prefix)
        if self._uses_chat_template:
            text = self._apply_chat_template(messages, row, is_begun=bool(begun))
        else:
            text = "\n".join(map(message_text, messages))
        text += prefix
        token_ids = self._encode(text)
        return Prompt(
            row=row,
            text=text,
            token_ids=token_ids,
            messages=tuple(answered),
            begun=begun,
            special_tokens=self._special_tokens,
        )

    def _apply_chat_template(
        self, messages: list[Message], row: Row, *, is_begun: bool
    ) -> str:
        shown = messages
        if is_begun:
            shown = [*messages[:-1], {**messages[-1], "content": _STAND_IN}]
        text = apply_chat_template(
            self._tokenizer,
            self._config,
            shown,
            tools=[*tools_of(row), *self._tools] or None,
            where=f"row {row.index} (line {row.index + 1})",
            remedy=" Leave data.system_prompt empty if the template has no system "
            "role, or set data.chat_template to none.",
            add_generation_prompt=not is_begun,
            continue_final_message=is_begun,
        )
        if is_begun:
            text, content = text.removesuffix(_STAND_IN), messages[-1]["content"]
            if content.lstrip().startswith("<think>"):
                text = _NO_THINKING.sub("", text)
            text += content
        return text

    def continuation(self, prompt: Prompt, text: str) -> tuple[int, ...]:
        """Return token ids of a text that continues a prompt, without an EOS token.

        They are the tokens of prompt and text together after those of the prompt, if no
        token crosses the boundary: some tokenizers encode the start of a text
        differently.
        """
        whole, size = self._encode(prompt.text + text), len(prompt.token_ids)
        if whole[:size] == prompt.token_ids:
            return whole[size:]
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _encode(self, text: str) -> tuple[int, ...]:
        # A chat template writes its own special tokens; plain text gets the
        # tokenizer's (a leading <s>), but not a closing one, which would end the text.
        ids = self._tokenizer.encode(
            text, add_special_tokens=not self._uses_chat_template
        )
        if not self._uses_chat_template and ids[-1:] == [self._tokenizer.eos_token_id]:
            ids = self._tokenizer.encode(text, add_special_tokens=False)
        limit, largest = self._num_embeddings, max(ids, default=0)
        if limit is not None and largest >= limit:
            token = self._tokenizer.convert_ids_to_tokens(largest)
            raise ValueError(
                f"{text[:40]!r} has the token {token!r} ({largest}): the tokenizer has "
                f"{len(self._tokenizer):,} tokens, the model {limit:,} embeddings. "
                "Resize the model's embeddings, or remove the token from the tokenizer."
            )
        return tuple(ids)
