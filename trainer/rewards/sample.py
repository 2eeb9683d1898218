"""What a rule is given to judge."""

from __future__ import annotations

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
