"""Questions that a judge answers with a label and a quote, and reading its replies."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.rewards.model_judge.question import Question, Unreadable, quote_reply
from trainer.rewards.rule import replace_surrogates

PROMPT_VERSION = 1  # raised when the words below change
LONGEST_TEXT = 24_000  # characters of a completion or a prompt; about 6,000 tokens
LONGEST_WHY, LONGEST_KIND = 200, 80
MOST_KINDS = 8
MOST_PHRASES = 300  # that are grouped into kinds
_MOST_BRACES = 100  # of a reply that are tried for the beginning of its object

_TASK = """You label replies of a language model. Answer this question about the reply:

{question}

Labels:
{labels}

Reply with one JSON object: {{"why": a sentence, "quote": the words of the reply that \
decide, copied exactly, or "" if there are none, "kind": what sort of case this is, in \
at most eight words, "label": one of {names}}}."""
_PROMPT = "The prompt was:\n\n{prompt}\n\n"
_COMPLETION = "The reply to label:\n\n{completion}"
_GROUP = """Someone read replies of a language model and noted for each, in a few \
words, what sort of case it is. They asked:

{question}

Group the notes by what they mean, into at most {most} groups. Reply with one JSON \
object: {{"kinds": [{{"name": the group's name in at most eight words, "notes": the \
numbers of its notes}}, …]}}. Put each number into exactly one group."""
_NOTES = "The notes:\n\n{notes}"
_CUT = "\n\n[{num:,} characters are left out here]\n\n"


@dataclass(frozen=True, slots=True)
class Label:
    name: str
    meaning: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelReply:
    label: str
    quote: str
    why: str
    kind: str


def make_label_question(
    question: str, labels: Sequence[Label], *, prompt: str | None, completion: str
) -> Question:
    """Return what is asked about a completion; the prompt is shown unless it is None.

    All that differs between completions comes last, so that servers read the beginning
    of it once.
    """
    described = "\n".join(
        f"- {label.name}" + (f": {label.meaning}" if label.meaning else "")
        for label in labels
    )
    names = ", ".join(json.dumps(label.name, ensure_ascii=False) for label in labels)
    system = _TASK.format(question=question.strip(), labels=described, names=names)
    texts = [("completion", completion)]
    if prompt is not None:
        texts.append(("prompt", prompt))
    return Question(
        system,
        ("" if prompt is None else _PROMPT) + _COMPLETION,
        tuple((name, replace_surrogates(shorten(text))) for name, text in texts),
    )


def shorten(text: str) -> str:
    """Return the text, or its beginning and end around what is left out.

    >>> len(shorten("a" * 30_000)) < 25_000
    True
    """
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return text[:half] + _CUT.format(num=len(text) - 2 * half) + text[-half:]


def reply_schema(labels: Sequence[Label]) -> str:
    """Return the JSON schema of a reply, for endpoints that hold a model to one."""
    texts = {name: {"type": "string"} for name in ("why", "quote", "kind")}
    label = {"type": "string", "enum": [label.name for label in labels]}
    return json.dumps(_object_schema({**texts, "label": label}))


def _object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def read_label(reply: str, labels: Sequence[Label]) -> LabelReply:
    """Read the last JSON object of a reply that has a label.

    Raises:
        Unreadable: it has none, or one that is not among the labels.
    """
    fields = _last_object(reply, "label")
    names = {label.name.casefold(): label.name for label in labels}
    given = fields["label"]
    name = names.get(given.strip().casefold()) if isinstance(given, str) else None
    if name is None:
        raise Unreadable(f"{given!r:.80} is not one of the labels")
    quote, why, kind = (
        replace_surrogates(text) if isinstance(text := fields.get(part), str) else ""
        for part in ("quote", "why", "kind")
    )
    return LabelReply(
        label=name,
        quote=quote,
        why=" ".join(why.split())[:LONGEST_WHY],
        kind=" ".join(kind.lower().strip(" .").split())[:LONGEST_KIND],
    )


def make_kinds_question(question: str, phrases: Sequence[str]) -> Question:
    """Return what is asked to group the kinds that a judge gave."""
    notes = "\n".join(f"{n}. {phrase}" for n, phrase in enumerate(phrases, start=1))
    system = _GROUP.format(question=question.strip(), most=MOST_KINDS)
    return Question(system, _NOTES, (("notes", notes),))


def kinds_schema() -> str:
    numbers = {"type": "array", "items": {"type": "integer"}}
    kind = _object_schema({"name": {"type": "string"}, "notes": numbers})
    return json.dumps(_object_schema({"kinds": {"type": "array", "items": kind}}))


def read_kinds(reply: str, phrases: Sequence[str]) -> dict[str, list[str]]:
    """Return the phrases of each name.

    Raises:
        Unreadable: a phrase is in no group or in two, or there are too many groups.
    """
    try:
        pairs = [
            (" ".join(kind["name"].split())[:LONGEST_KIND], kind["notes"])
            for kind in _last_object(reply, "kinds")["kinds"]
        ]
        numbers = sorted(number for _, notes in pairs for number in notes)
    except (TypeError, LookupError, AttributeError):
        raise Unreadable(f"it has no groups: {quote_reply(reply)}") from None
    names = {name for name, _ in pairs}
    if numbers != list(range(1, len(phrases) + 1)) or len(names) < len(pairs):
        raise Unreadable("a note is not in exactly one group")
    if len(pairs) > MOST_KINDS or "" in names:
        raise Unreadable(f"it has {len(pairs)} groups, or one without a name")
    return {name: [phrases[int(n) - 1] for n in notes] for name, notes in pairs}


def _last_object(reply: str, field: str) -> dict[str, Any]:
    """Return the last JSON object with a field; Unreadable if there is none."""
    decoder = json.JSONDecoder()
    braces = [match.start() for match in re.finditer(r"\{", reply)]
    for start in reversed(braces[-_MOST_BRACES:]):
        try:
            fields, _ = decoder.raw_decode(reply, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(fields, dict) and field in fields:
            return fields
    raise Unreadable(f'it has no JSON object with "{field}": {quote_reply(reply)}')


def find_quote(quote: str, text: str) -> tuple[int, int] | None:
    """Return where a text has a quote, or has it with other whitespace.

    >>> find_quote("two  plus\\ntwo", "so two plus two is 4")
    (3, 15)
    """
    words = quote.split()
    if not words:
        return None
    start = text.find(quote)
    if start >= 0:
        return start, start + len(quote)
    match = re.search(r"\s+".join(map(re.escape, words)), text)
    return match.span() if match else None
