"""What completions have in common: words in a row, within one and between many.

A text's words are told apart by white space, in lower case; a character of Chinese,
Japanese or Korean is a word of its own. A phrase is four words in a row.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from dashboard.insights.audit.sampled import SampledGroup

Phrases = NDArray[np.uint64]  # hashes
Counts = NDArray[np.int64]

NUM_WORDS = 4
MOST_TOLD = 10
MOST_LOOKED_AT = 100
LEAST_RISE = 0.05
MOST_SOUGHT = 198  # letters
EAST_ASIAN = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
WORD = re.compile(rf"[{EAST_ASIAN}]|[^\s{EAST_ASIAN}]+")


@dataclass(frozen=True, slots=True)
class Text:
    """`phrases[i]` begins at word i; both arrays are in the order of the text."""

    prompt: int
    words: NDArray[np.uint32]  # by their numbers in the vocabulary
    phrases: Phrases


class Vocabulary:
    """Gives each word a number, so that numpy can hash four in a row."""

    def __init__(self) -> None:
        self._numbers: defaultdict[str, int] = defaultdict()
        self._numbers.default_factory = self._numbers.__len__

    def read(self, groups: Iterable[SampledGroup]) -> list[Text]:
        return [self._read(g.prompt, text) for g in groups for text in g.texts]

    def _read(self, prompt: int, text: str) -> Text:
        numbered = [self._numbers[word] for word in split_words(text)]
        words = np.array(numbered, np.uint32)
        return Text(prompt=prompt, words=words, phrases=_hash(words))

    def spell(self, phrases: Sequence[Sequence[int]]) -> list[str]:
        wanted = {number for phrase in phrases for number in phrase}
        known = {n: word for word, n in self._numbers.items() if n in wanted}
        return [" ".join(known[number] for number in phrase) for phrase in phrases]


def split_words(text: str) -> list[str]:
    """
    >>> split_words("So it is\\n4.")
    ['so', 'it', 'is', '4.']
    """
    folded = text.lower()
    return folded.split() if folded.isascii() else WORD.findall(folded)


def _hash(words: NDArray[np.uint32]) -> Phrases:
    """Of each four in a row."""
    num = len(words) - NUM_WORDS + 1
    if num < 1:
        return np.empty(0, np.uint64)
    mixed = np.zeros(num, np.uint64)
    for place in range(NUM_WORDS):
        # FNV-1a's prime, by which each place counts otherwise.
        mixed = (mixed ^ words[place : place + num]) * np.uint64(0x100000001B3)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def repetition(texts: Sequence[Text]) -> float:
    """The mean of 1 - distinct phrases / phrases: rep-4 of Welleck et al. 2020
    (arXiv:1908.04319).

    NaN: no text has four words.
    """
    long = [text.phrases for text in texts if len(text.phrases)]
    shares = [1 - len(np.unique(phrases)) / len(phrases) for phrases in long]
    return float(np.mean(shares)) if shares else np.nan


def shared(texts: Sequence[Text]) -> float:
    """The mean share of a text's distinct phrases that texts of other prompts have too.

    Texts come prompt by prompt. NaN: all texts with four words are of one prompt.
    """
    long = [text for text in texts if len(text.phrases)]
    by_prompt = [
        np.unique(np.concatenate([text.phrases for text in of_prompt]))
        for _, of_prompt in groupby(long, lambda text: text.prompt)
    ]
    if len(by_prompt) < 2:
        return np.nan
    found, counts = np.unique(np.concatenate(by_prompt), return_counts=True)
    common = found[counts > 1]
    shares = [np.isin(np.unique(text.phrases), common).mean() for text in long]
    return float(np.mean(shares))


@dataclass(frozen=True, kw_only=True, slots=True)
class Phrase:
    """In how many texts it is before and after a change, of how many."""

    words: str
    before: int
    of_before: int
    after: int
    of_after: int

    @property
    def quoted(self) -> str:
        """As the search for words takes a phrase; empty where it would find nothing."""
        has_words = any(letter.isalnum() for letter in self.words)
        is_found = self.words.isascii() and has_words and len(self.words) < MOST_SOUGHT
        return '"' + self.words.replace('"', " ") + '"' if is_found else ""

    @property
    def share_before(self) -> float:
        return self.before / self.of_before

    @property
    def share_after(self) -> float:
        return self.after / self.of_after


def risen_phrases(
    before: Sequence[Text], after: Sequence[Text], vocabulary: Vocabulary
) -> list[Phrase]:
    """Up to ten whose share of texts rose most, by 0.05 at least; those that share two
    words in a row with one that is told already are left out."""
    if not before or not after:
        return []
    found, counts = _count(after)
    was = _find_counts(found, *_count(before))
    rises = counts / len(after) - was / len(before)
    told: list[tuple[list[int], int, int]] = []
    for place in np.argsort(-rises, kind="stable")[:MOST_LOOKED_AT].tolist():
        if rises[place] < LEAST_RISE or len(told) == MOST_TOLD:
            break
        words = _words_of(found[place], after)
        if not any(_overlap(words, others) for others, _, _ in told):
            told.append((words, int(was[place]), int(counts[place])))
    spelled = vocabulary.spell([words for words, _, _ in told])
    return [
        Phrase(
            words=words,
            before=num_before,
            of_before=len(before),
            after=num_after,
            of_after=len(after),
        )
        for words, (_, num_before, num_after) in zip(spelled, told, strict=True)
    ]


def _count(texts: Sequence[Text]) -> tuple[Phrases, Counts]:
    """Each phrase, and in how many texts it is."""
    distinct = [np.unique(text.phrases) for text in texts]
    return np.unique(np.concatenate(distinct), return_counts=True)


def _find_counts(wanted: Phrases, known: Phrases, counts: Counts) -> Counts:
    found = np.zeros(len(wanted), np.int64)
    if len(known):
        places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        is_known = known[places] == wanted
        found[is_known] = counts[places[is_known]]
    return found


def _words_of(phrase: np.uint64, texts: Sequence[Text]) -> list[int]:
    for text in texts:
        places = np.flatnonzero(text.phrases == phrase)
        if len(places):
            words: list[int] = text.words[places[0] : places[0] + NUM_WORDS].tolist()
            return words
    raise AssertionError("the phrase was counted in these texts")


def _overlap(some: Sequence[int], others: Sequence[int]) -> bool:
    """Whether one goes on within the other, by two words or more."""
    return any(
        some[shift:] == others[: NUM_WORDS - shift]
        or others[shift:] == some[: NUM_WORDS - shift]
        for shift in range(NUM_WORDS - 1)
    )
