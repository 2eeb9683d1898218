"""From a file's record to a row: the prompt, the answer and extra columns."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cohort.lines import IMAGE_TYPES, part_text
from dashboard.datasets.limits import MAX_NAME_CHARS
from dashboard.datasets.parsing.records import (
    NotJson,
    Record,
    Refusal,
    Unusable,
    broken_text,
    check_value,
    quote,
)
from dashboard.datasets.prompt_template import TemplateFault, read_template
from dashboard.datasets.row import Prompt, Row
from trainer.rewards.rule import MAX_ANSWERS, Answer, as_answer, column_of

# As files name them, and as chat templates know them. ShareGPT writes
# {"from": …, "value": …}.
ROLES = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "developer": "system",
    "function": "tool",
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "observation": "tool",
}
# What chat templates read of a message besides its role and content.
TOOL_KEYS = ("name", "tool_calls", "tool_call_id", "reasoning_content")
TEXT_PARTS = ("text", "input_text", "output_text")
LAST_REPLIES = ("answer", "prefill", "drop", "refuse")
MAX_PATHS = 200
MAX_PYTHON_CHARS = 100_000
_PYTHON_CHAT = re.compile(r"\[\{'(role|content|from|value)':")
MAX_PATH_PARTS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Mapping:
    """
    A name may be a path into a column of objects or lists: extra_info.index.

    >>> Mapping(prompt="question", answer="solution", columns=("level",))
    >>> Mapping(template="{{ instruction }}\n\n{{ input }}", answer="output")
    """

    prompt: str = ""  # with a template: none
    template: str = ""  # as prompt_template.py reads it
    answer: str | None = None
    columns: tuple[str, ...] = ()
    system: str = ""  # the text of a system message; a chat keeps one of its own
    # A chat's last message, if the assistant's: the answer, what each completion
    # continues, removed, or an error. Only as a prefill it is part of the prompt.
    last_reply: str = "answer"

    def as_json(self) -> dict[str, Any]:
        tree: dict[str, Any] = {
            "prompt": self.prompt,
            "answer": self.answer,
            "columns": list(self.columns),
        }
        if self.template:
            tree["template"] = self.template
        if self.system:
            tree["system"] = self.system
        if self.last_reply != LAST_REPLIES[0]:
            tree["last_reply"] = self.last_reply
        return tree

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Mapping:
        """Read what `as_json` made."""
        return cls(**{**tree, "columns": tuple(tree["columns"])})


def map_record(record: Record, mapping: Mapping, *, is_text: bool) -> Row | Refusal:
    """Map a record to a row. `is_text`: the file has no types, as CSV and TSV have
    none.
    """
    column: str | None = mapping.prompt or None
    reply = None
    try:
        if mapping.template:
            prompt: Prompt = _rendered(record, mapping.template, is_text=is_text)
        else:
            prompt, reply = _prompt(
                _value(
                    record,
                    mapping.prompt,
                    "Add it, remove the row, or choose another column.",
                    is_text=is_text,
                ),
                mapping,
                is_text=is_text,
            )
        if mapping.system:
            column = mapping.system
            system = find_value(record.values, column, is_text=is_text)
            prompt = _with_system(prompt, system)
        answer: Answer | None = reply
        if mapping.answer is not None:
            column = mapping.answer
            answer = _answer(
                _value(
                    record,
                    column,
                    "Add it, remove the row, or choose “no answer”.",
                    is_text=is_text,
                ),
                is_text=is_text,
            )
        columns, left_empty = {}, []
        for column in mapping.columns:
            value = find_value(record.values, column, is_text=is_text)
            if value is MISSING:
                value = None
            columns[column] = typed(value) if is_text else value
            try:
                check_value(columns[column])
            except NotJson:
                columns[column] = None
                left_empty.append(column)
    except Unusable as error:
        is_there = column is not None and column in record.values
        return Refusal(
            line=record.line,
            row=record.row,
            column=column,
            value=quote(error.value) if is_there or error.value is not None else "",
            problem=error.problem,
            remedy=error.remedy,
        )
    return Row(
        prompt=prompt, answer=answer, columns=columns, left_empty=tuple(left_empty)
    )


MISSING = object()


def _value(record: Record, name: str, remedy: str, *, is_text: bool) -> Any:
    """Read a column; a missing one is not the same error as a null."""
    value = find_value(record.values, name, is_text=is_text)
    if value is MISSING:
        raise Unusable(f'The row has no column "{name}".', remedy, None)
    return value


def find_value(values: dict[str, Any], path: str, *, is_text: bool) -> Any:
    """Return the column, or the value at a path that begins with a column; else
    MISSING.
    """
    if path in values:
        return values[path]
    root, _, inner = path.partition(".")
    if is_text and inner and isinstance(values.get(root), str):
        values = {root: typed(values[root])}
    return column_of(values, path, MISSING)


def nested_names(records: Sequence[Record], *, is_text: bool) -> list[str]:
    """Paths of the values inside columns of objects, as far as these records show."""
    names: dict[str, None] = {}
    for record in records:
        for name, value in record.values.items():
            _add_paths(names, name, typed(value) if is_text else value, depth=1)
    taken = {name for record in records for name in record.values}
    return [name for name in names if name not in taken][:MAX_PATHS]


def _add_paths(paths: dict[str, None], name: str, value: Any, *, depth: int) -> None:
    if not isinstance(value, dict) or depth > MAX_PATH_PARTS:
        return
    for key, inner in value.items():
        path = f"{name}.{key}"
        if len(path) > MAX_NAME_CHARS or len(paths) >= MAX_PATHS:
            return
        if inner is not None:
            paths[path] = None
        _add_paths(paths, path, inner, depth=depth + 1)


def _rendered(record: Record, template: str, *, is_text: bool) -> str:
    values = record.values
    if is_text:
        values = {name: typed(value) for name, value in values.items()}
    try:
        read = read_template(template)
        for name in read.variables:
            check_value(values.get(name))
        prompt = read.render(values)
    except TemplateFault as error:
        raise Unusable(
            str(error), "Change the template, or remove the row.", None
        ) from None
    if not prompt.strip():
        raise Unusable(
            "The template renders an empty prompt.",
            "Change the template, or remove the row.",
            None,
        )
    if broken := broken_text(prompt):
        raise Unusable(
            f"The rendered prompt contains {broken}.",
            "Remove that character from the row.",
            prompt,
        )
    return prompt


def _prompt(
    value: Any, mapping: Mapping, *, is_text: bool
) -> tuple[Prompt, str | None]:
    """Return the prompt, and the reply that a chat ends with."""
    check_value(value)
    if isinstance(value, str) and value.startswith("[{"):
        value = _chat_of(value)
    if isinstance(value, list) and value:
        messages = [_message(message) for message in value]
        if messages[-1]["role"] != "assistant":
            return messages, None
        if mapping.last_reply == "refuse":
            raise Unusable(
                "The last message has the role assistant: there is nothing to "
                "complete.",
                "Remove it, or choose that it is the answer.",
                messages[-1].get("content"),
            )
        *before, reply = messages
        if not any(message["role"] in ("user", "tool") for message in before):
            raise Unusable(
                "The chat has no user message before the assistant's.",
                "Add one, or remove the row.",
                value[-1],
            )
        if mapping.last_reply == "prefill":
            return messages, None
        is_answer = mapping.last_reply == "answer"
        return before, _reply_text(reply) if is_answer else None
    if not isinstance(value, str):
        raise Unusable(
            "The prompt is neither text nor a list of chat messages.",
            "Choose another column as the prompt, write a template, or correct the "
            "row.",
            value,
        )
    if not value.strip():
        raise Unusable("The prompt is empty.", "Fill it in, or remove the row.", value)
    return value, None


def _with_system(prompt: Prompt, system: Any) -> Prompt:
    """Return the prompt as a chat that begins with the system message, where there is
    one.
    """
    chat = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if system is MISSING or not system or chat[0]["role"] == "system":
        return prompt
    check_value(system)
    return [_message({"role": "system", "content": system}), *chat]


def _chat_of(cell: str) -> Any:
    """Return the chat that a text holds as JSON, or as Python writes it; else the
    text.
    """
    tree = typed(cell)
    if tree == cell and _PYTHON_CHAT.match(cell):
        try:
            # Reads literals; a text of this size cannot exhaust it.
            tree = ast.literal_eval(cell) if len(cell) <= MAX_PYTHON_CHARS else None
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            tree = None
        if tree is None:
            raise Unusable(
                "The prompt is a chat as Python prints it, which cannot be read.",
                "Write the column with json.dumps, or as JSON lines.",
                cell,
            )
    is_chat = isinstance(tree, list) and all(
        isinstance(item, dict) and ("role" in item or "from" in item) for item in tree
    )
    return tree if is_chat else cell


def _reply_text(reply: dict[str, Any]) -> str | None:
    """Return the text of a reply; one that only calls tools is their calls as JSON."""
    calls = reply.get("tool_calls")
    written = json.dumps(calls, ensure_ascii=False) if calls else None
    return reply.get("content") or written


def _message(message: Any) -> dict[str, Any]:
    """Return role and content, and what a chat template may read of tools."""
    if not isinstance(message, dict):
        raise _no_message(message)
    if message.get("from") == "function_call":
        call = {"type": "function", "function": _call(message.get("value"))}
        fields = {"role": "assistant", "tool_calls": [call]}
    elif "from" in message and "value" in message:
        fields = {**message, "role": message["from"], "content": message["value"]}
    else:
        fields = message
    if "role" not in fields:
        raise _no_message(message)
    tool_fields = {
        name: fields[name] for name in TOOL_KEYS if fields.get(name) is not None
    }
    name = fields["role"]
    role = ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise Unusable(
            "A chat message has an unknown role.",
            f"Use one of {', '.join(ROLES)}.",
            name,
        )
    content = fields.get("content")
    if isinstance(content, list):
        content = "\n".join(_part(part) for part in content)
    elif content is not None and not isinstance(content, str):
        raise Unusable(
            "The content of a chat message is not text.",
            "Write it as one string, or as a list of text parts.",
            content,
        )
    if content is None and "tool_calls" not in tool_fields:
        raise Unusable(
            "A chat message has no content.", "Fill it in, or remove the row.", message
        )
    return {"role": role, "content": content, **tool_fields}


def _call(value: Any) -> dict[str, Any]:
    """Return the call of a tool, which ShareGPT writes as JSON."""
    call = typed(value)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise Unusable(
            "A function_call of a chat is no JSON object with a name.",
            'Write it as {"name": "…", "arguments": {…}}.',
            value,
        )
    return {"name": call["name"], "arguments": call.get("arguments", {})}


def _no_message(value: Any) -> Unusable:
    return Unusable(
        "A chat message must have a role and content.",
        'Write it as {"role": "user", "content": "…"}.',
        value,
    )


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, dict) else None
    if kind in IMAGE_TYPES:
        return part_text(part)
    if kind not in TEXT_PARTS:
        named = f"of type {quote(kind)}" if isinstance(kind, str) else "without a type"
        raise Unusable(
            f"A chat message has a part {named}; rows have texts and images only.",
            "Remove the part or the row.",
            part,
        )
    text = part.get("text", part.get("content"))
    if not isinstance(text, str):
        raise Unusable(
            "A text part of a chat message has no text.",
            'Write it as {"type": "text", "text": "…"}.',
            part,
        )
    return text


def _answer(value: Any, *, is_text: bool) -> Answer | None:
    check_value(value)
    if is_text and isinstance(value, str) and value.startswith('["'):
        texts = typed(value)
        is_list = isinstance(texts, list) and all(isinstance(it, str) for it in texts)
        value = texts if is_list else value
    if value in (None, "", []):
        raise Unusable(
            "The row has no answer.",
            "Fill it in, remove the row, or choose “no answer”.",
            value,
        )
    if not isinstance(value, list):
        return _answer_text(value)
    if isinstance(value[0], dict) and len(value) == 1 and "role" in value[0]:
        # TRL's column completion
        return _answer(_reply_text(_message(value[0])), is_text=False)
    answers = list(dict.fromkeys(_answer_text(item) for item in value))
    if len(answers) > MAX_ANSWERS:
        raise Unusable(
            f"The row has {len(answers):,} answers; the limit is {MAX_ANSWERS}.",
            "Keep fewer, or keep the list as an extra column.",
            value,
        )
    return as_answer(answers)


def _answer_text(value: Any) -> str:
    if value is None or isinstance(value, list | dict):
        raise Unusable(
            "The answer is neither text nor a number, nor a list of these.",
            "Name a value inside it, as in reward_model.ground_truth, keep it as an "
            "extra column, or write the answer as text.",
            value,
        )
    return value if isinstance(value, str) else json.dumps(value)


def typed(cell: Any) -> Any:
    """Read a CSV cell as JSON if writing it again gives the same text.

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
