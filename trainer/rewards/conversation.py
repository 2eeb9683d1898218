"""The conversation that a row's completions answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

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
