"""Extracts the answer from a completion, in time linear in its length."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from trainer.rewards.rule import NotApplicable, Params, Sample

LengthUnit = Literal["characters", "words"]
TAG_NAME = r"^[A-Za-z][A-Za-z0-9_-]{0,31}$"
_THINK_TAG = re.compile(r"<(/?)think(?:ing)?>")
_FENCE_LINE = re.compile(r"(?m)\n([ \t]*+)([^`~\n]*+)(`{3,}|~{3,})([^`\n]*)$")
_TICKS, _TICKS_OR_TILDES = re.compile("```"), re.compile("```|~~~")
_OPEN_AT_END = re.compile(r"<think(?:ing)?>\s*\Z")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_WRAPPER = re.compile(r"\\(?:boxed|fbox|text|textbf|mathrm|mathbf)\s*\{")
_MOST_WRAPPERS = 3  # a hostile text may have thousands
# Bold text in Markdown. Two asterisks behind a letter or digit are a power.
_BOLD = re.compile(r"(?<![\w)*])\*\*(?=[^\s*])([^*]+)(?<=\S)\*\*(?![\w(*])")


def thinking_field() -> Any:
    return Field(
        False,
        title="Read thinking",
        description="Also read answers inside <think> tags. Otherwise only the text "
        "after the thinking counts; unfinished thinking gives no answer.",
    )


def open_tag(prompt: str) -> str:
    """Return the think tag at the end of a rendered
    prompt, which the completion continues.

    >>> open_tag("<|im_start|>assistant\\n<think>\\n")
    '<think>\\n'
    """
    end = prompt[-200:]
    if "<think" not in end:
        return ""
    match = _OPEN_AT_END.search(end)
    return "" if match is None else match[0]


def reply_of(sample: Sample, *, read_thinking: bool = False) -> str:
    """Return the answer without its thinking."""
    text = sample.text
    if read_thinking:
        return text
    opened = open_tag(sample.prompt)
    return without_thinking(opened + text if opened else text)


def without_thinking(text: str) -> str:
    """Return the text without that inside think tags, or before a closing tag alone.

    Thinking that does not end has no reply behind it.

    >>> without_thinking("<think>7?</think>It is 8. <think>Or 9")
    'It is 8. '
    """
    num_tags = text.count("think")
    if num_tags == 0:
        return text
    if num_tags == 2 and text.startswith("<think>"):  # nearly always
        _, is_closed, reply = text.partition("</think>")
        if is_closed:
            return reply
    parts: list[str] = []
    start, is_inside = 0, False
    for tag in _THINK_TAG.finditer(text):
        is_closing = bool(tag[1])
        if is_closing and not is_inside:
            parts = []
        elif not is_closing and not is_inside:
            parts.append(text[start : tag.start()])
        is_inside = not is_closing
        start = tag.end()
    if not is_inside:
        parts.append(text[start:])
    return "".join(parts)


class ExtractionParams(Params):
    """The place of the answer in a completion."""

    source: Literal["tags", "boxed", "last_line", "whole"] = Field(
        "tags",
        title="Answer location",
        description="The last pair of answer tags, the last \\boxed{}, the last "
        "non-empty line, or the whole completion.",
    )
    tag: str = Field(
        "answer",
        pattern=TAG_NAME,
        title="Answer tag",
        description="Tag name without brackets: answer for <answer>.",
    )
    read_thinking: bool = thinking_field()


def extract(completion: str, params: ExtractionParams) -> str | None:
    """Return the answer's text, stripped; None when it is not where it should be."""
    if params.source == "whole":
        return completion.strip() or None
    part = find_part(completion, params.source, tag=params.tag)
    return None if part is None else part.strip()


def find_part(
    text: str,
    source: str,
    *,
    tag: str = "",
    marker: str = "",
    languages: Sequence[str] = (),
) -> str | None:
    """Return the part of a text that a rule reads; None when it is not there.

    Args: source: tags, boxed, marker, fence or last_line; any other is the whole text.
    """
    match source:
        case "tags":
            return last_block(text, tag)
        case "boxed":
            return last_boxed(text)
        case "marker":
            return after_marker(text, marker)
        case "fence":
            return last_fence(text, *languages)
        case "last_line":
            return last_line(text)
    return text


def count_length(text: str, unit: LengthUnit) -> int:
    """Return characters, or words, which stand between white space."""
    return len(text) if unit == "characters" else len(text.split())


def last_block(text: str, tag: str) -> str | None:
    """Return what the last complete pair of tags encloses.

    >>> last_block("<answer>1</answer> <answer>2</answer>", "answer")
    '2'
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    end = text.rfind(closing)
    start = text.rfind(opening, 0, max(end, 0))
    if start < 0:
        return None
    return text[start + len(opening) : end].strip()


def last_fence(text: str, *languages: str) -> str | None:
    """Return what the last fenced block of these languages holds; None without a block.

    If there is none of them, the last block that names no language counts, else the
    last of all. A fence has a line of its own; one that names a wanted language may
    also open behind text, or after a block that was never closed.

    >>> last_fence("so:\n```json\n[1]\n```\nRun it:\n```bash\nls\n```", "json")
    '[1]'
    """
    blocks: dict[int, str] = {}
    opening: re.Match[str] | None = None
    text = f"\n{text}\n"
    for fence in _fence_lines(text):
        info = fence[4].strip().lower()
        # Deeper ones belong to the block, such as to a docstring.
        is_marker = opening is None or not (fence[2] or len(fence[1]) > len(opening[1]))
        if opening and is_marker and not info and fence[3].startswith(opening[3]):
            language = re.split(r"[^\w+#-]", opening[4].lower().strip(" {."))[0]
            rank = 0 if language in languages else 2 if language else 1
            body = text[opening.end() : fence.start()]
            blocks[rank] = body.replace("\n" + opening[1], "\n").strip()
            opening = None
        elif is_marker and (info in languages or not (fence[2] or opening)):
            opening = fence
    return blocks[min(blocks)] if blocks else _between_last_marks(text)


def _fence_lines(text: str) -> Iterator[re.Match[str]]:
    """Match each line with a fence; a literal is found much faster than a class."""
    has_tildes, end = "~" in text and "~~~" in text, 0
    mark = _TICKS_OR_TILDES if has_tildes else _TICKS
    while match := mark.search(text, end):
        line = _FENCE_LINE.match(text, text.rfind("\n", 0, match.start()))
        end = text.find("\n", match.end())
        if line:
            yield line


def _between_last_marks(text: str) -> str | None:
    end = text.rfind("```")
    start = text.rfind("```", 0, max(end, 0))
    if start < 0:
        return None
    language, is_there, body = text[start + 3 : end].partition("\n")
    return (body if is_there else language).strip()


def last_boxed(text: str) -> str | None:
    r"""Return what the last \boxed{…} encloses, inner braces included.

    >>> last_boxed(r"so \boxed{\frac{1}{2}}")
    '\\frac{1}{2}'
    """
    boxes = list(_BOX.finditer(text)) if "box" in text else []
    if not boxes:
        return None
    start = boxes[-1].end()
    end = closing_of(text, start, "{}")
    return None if end is None else text[start:end]


def closing_of(text: str, start: int, brackets: str) -> int | None:
    """Give the place of the bracket that closes one before `start`; None without it."""
    depth = 1
    for position in range(start, len(text)):
        if text[position] in brackets:
            depth += 1 if text[position] == brackets[0] else -1
        if depth == 0:
            return position
    return None


# Raised, lowered and fraction characters mean more than the digits they are made of.
_NOT_ALIKE = ("<super>", "<sub>", "<fraction>")
# Quotation marks and minus signs as a keyboard has them; characters without a width.
_TYPED = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u02bc", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2212\u2010\u2011\u2012\ufe63\uff0d", "-"),
        **dict.fromkeys("\u200b\u2060\ufeff\u00ad\u200e\u200f", ""),
    }
)


def as_typed(text: str) -> str:
    """Return the text with the characters that a keyboard
    writes, without marks of bold words.

    >>> as_typed("It\u2019s **\uff11\uff12**, or 2**3.")
    "It's 12, or 2**3."
    """
    if not text.isascii():
        text = text.translate(_TYPED)
        alike = {ord(it): _compatible(it) for it in set(text) if not it.isascii()}
        text = unicodedata.normalize("NFC", text.translate(alike))
    return _BOLD.sub(r"\1", text) if "**" in text else text


def _compatible(character: str) -> str:
    if unicodedata.decomposition(character).startswith(_NOT_ALIKE):
        return character
    return unicodedata.normalize("NFKC", character)


def unwrapped(text: str, tag: str) -> str:
    r"""Return the text without tags, a box, \text{} or dollar signs around all of it.

    >>> unwrapped(r"<answer> \boxed{cat} </answer>", "answer")
    'cat'
    """
    text = text.strip()
    if not text.startswith(("<", "\\", "$")):
        return text
    if text.startswith(f"<{tag}>") and text.endswith(f"</{tag}>"):
        text = last_block(text, tag) or text
    if text[:1] == text[-1:] == "$" and text.count("$") == 2:
        text = text[1:-1].strip()
    for _ in range(_MOST_WRAPPERS):
        wrapper = _WRAPPER.match(text)
        if wrapper is None or closing_of(text, wrapper.end(), "{}") != len(text) - 1:
            break
        text = text[wrapper.end() : -1].strip()
    return text


def after_marker(text: str, marker: str, *, until: str = "") -> str | None:
    """Return what follows the last marker: its line, or all up to the next `until`.

    None without the marker, or without the `until` behind it.

    >>> after_marker("#### 41\nNo. #### 42\nDone.", "####")
    '42'
    """
    _, is_there, after = text.rpartition(marker)
    if not is_there:
        return None
    if not until:
        return after.strip().partition("\n")[0]
    answer, is_closed, _ = after.partition(until)
    return answer if is_closed else None


def last_line(text: str) -> str | None:
    stripped = text.rstrip()
    return stripped[stripped.rfind("\n") + 1 :].strip() or None


def require_answer(sample: Sample) -> str:
    """Return the row's answer, one text; NotApplicable when the row has none."""
    assert not isinstance(sample.answer, list), "the rule compares with one at a time"
    if sample.answer is None or not sample.answer.strip():
        raise NotApplicable(
            "The row has no answer to compare with. Map a column to the answer, or "
            "use a rule that needs none."
        )
    return sample.answer
