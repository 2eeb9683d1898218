"""Reasoning steps: a completion cut where a pattern says."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Literal

from transformers import PreTrainedTokenizerBase

from trainer.model.tokenizers import decode_text
from trainer.rewards.patterns import compile_pattern
from trainer.types import Completion

Boundary = Literal["end", "begin"]


@dataclass(frozen=True)
class Step:
    """A part of a completion and the exclusive offset of its last token.

    >>> Step("3+5=8,8-7=1.", 11)
    """

    text: str
    end: int


def cut_steps(
    completion: Completion,
    *,
    pattern: str,
    tokenizer: PreTrainedTokenizerBase,
    boundary: Boundary = "end",
) -> list[Step]:
    """Cut a completion behind each match of an RE2 pattern, or before each.

    The match belongs to the step that it ends, or begins, and a token to the step in
    which it ends. A part that is blank or in which no token ends is no step of its own
    and joins the next one; what is behind the last cut is the last step, the ending
    token with it. There is always at least one step, and together they are the whole
    completion.
    """
    text = completion.text
    stops = completion.end_reason == "stop"
    written = completion.token_ids[: -1 if stops else None]
    cuts = [(0, 0)]  # in the text, in the tokens
    for text_end in _text_ends(text, pattern, boundary):
        begin, num_tokens = cuts[-1]
        end = _num_tokens_until(text_end, text, written, tokenizer, at_least=num_tokens)
        if text[begin:text_end].strip() and end > num_tokens:
            cuts.append((text_end, end))
    if len(cuts) > 1 and not text[cuts[-1][0] :].strip():
        cuts.pop()  # a blank rest joins the step before it
    cuts.append((len(text), completion.num_tokens))
    return [
        Step(text[begin:text_end], end)
        for (begin, _), (text_end, end) in pairwise(cuts)
    ]


def _text_ends(text: str, pattern: str, boundary: Boundary) -> list[int]:
    # Half a surrogate pair is no UTF-8, which RE2 reads; its stand-in is as long.
    readable = text.encode("utf-8", "replace").decode("utf-8")
    matches = compile_pattern(pattern).finditer(readable)
    return [
        match.end() if boundary == "end" else match.start()
        for match in matches
        if match.end() > match.start()
    ]


def _num_tokens_until(
    text_end: int,
    text: str,
    token_ids: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
    *,
    at_least: int,
) -> int:
    """How many tokens end at or before a place in the text they decode to."""

    def end_of(num_tokens: int) -> int:
        return _num_begun(decode_text(tokenizer, token_ids[:num_tokens]), text)

    counts = range(len(token_ids) + 1)
    return bisect_right(counts, text_end, lo=at_least + 1, key=end_of) - 1


def _num_begun(decoded: str, text: str) -> int:
    """Characters of a text that its first tokens, decoded alone, complete or begin.

    A character may be spread over several tokens. The first of them decode to
    replacement characters, one or more as the tokenizer likes; the character counts
    as begun.
    """
    if text.startswith(decoded):
        return len(decoded)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(decoded, text, strict=False))
    return min(sum(1 for _ in same) + 1, len(text))
