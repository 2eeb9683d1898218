"""What a rule is given to judge."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Sample:
    """One completion of a prompt, with what the row knows about it.

    `answer` is the row's ground truth; `columns` are the row's other columns, as JSON
    values. `messages` are the conversation that the completion answers, each with role
    and content, where `prompt` is the text that a model was given: with the marks of
    its chat template. Of a reasoning step, `before` is what stands before it in its
    completion.

    >>> Sample("2+2?", "<answer>4</answer>", "4")
    """

    prompt: str
    completion: str
    answer: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Mapping[str, str]] = ()
    before: str = ""


def replace_surrogates(text: str) -> str:
    """Half of a surrogate pair, which is no UTF-8, becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def quote(value: Any) -> str:
    """A value as a sentence can show it: on one line, and not too long."""
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


class Unscorable(Exception):
    """The row cannot be judged: a column is missing, a reference cannot be read.

    It is no fault of the completion, so the rule gives no score rather than 0: a 0
    would teach the policy that its answer was wrong. The text names the row's value
    and the remedy.
    """


class NotApplicable(Unscorable):
    """The row has nothing for the rule to judge by, and that is nobody's fault.

    As where a dataset has answers for some of its prompts. It gives no score either,
    but does not count among the errors that end a run.
    """


Message = dict[str, str]


def conversation(
    prompt: str | Sequence[Message],
    columns: Mapping[str, Any],
    *,
    system_prompt: str | None,
    prompt_template: str | None,
    where: str,
) -> list[Message]:
    """The row's prompt behind the system prompt, filled into the template.

    Args:
        where: names the row in errors, as in "row 3 (line 4)".

    Raises:
        ValueError: the template cannot be filled with this row.
    """
    messages: list[Message] = []
    if system_prompt is not None:
        messages.append({"role": "system", "content": system_prompt})
    if not isinstance(prompt, str):
        if prompt_template is not None:
            raise ValueError(
                f"{where[:1].upper()}{where[1:]} is a list of messages, which "
                "data.prompt_template cannot fill. Leave the template empty."
            )
        return messages + list(prompt)
    content = prompt
    if prompt_template is not None:
        content = fill_template(prompt_template, prompt, columns, where=where)
    return [*messages, {"role": "user", "content": content}]


def fill_template(
    template: str, prompt: str, columns: Mapping[str, Any], *, where: str
) -> str:
    """Put the prompt and columns of a row where the template names them in braces.

    Braces that enclose no plain name stay as they are, so a template may show JSON.
    """
    values = {**columns, "prompt": prompt}

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in values:
            raise ValueError(
                f"data.prompt_template names {{{name}}}, which {where} has not. It has "
                f"{', '.join(sorted(values))}."
            )
        found = values[name]
        return found if isinstance(found, str) else json.dumps(found)

    return re.sub(r"\{(\w+)\}", value, template)
