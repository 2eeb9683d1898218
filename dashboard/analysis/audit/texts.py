"""A sample of a run's completions, and the phrases that they share.

Up to 60 evenly spaced steps are read, and of each as many groups as make 64 completions
by the run's group size (8 for an import), at most 64 completions of a group, and the
first 4,000 characters of each.

Words are split at white space, in lower case; a Chinese, Japanese or Korean character
is a word. A phrase is four consecutive words.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from django.db import connection
from numpy.typing import NDArray

from dashboard.runs.charts.chart import clip
from dashboard.runs.models import Run

MOST_STEPS = 60
MOST_COMPLETIONS = 64  # of a step
MOST_GROUPS = 16
MOST_CHARS = 4_000
GROUP_OF_AN_IMPORT = 8

# The nearest step from each of some on, by index.
STEPS = """
SELECT DISTINCT found.step
  FROM generate_series(%(first)s, %(last)s, %(every)s) wanted,
       LATERAL (SELECT step FROM samples_group
                 WHERE run_id = %(run)s AND superseded_by IS NULL
                   AND step BETWEEN wanted AND %(last)s
                 ORDER BY step LIMIT 1) found
 ORDER BY 1
"""
ENDS = """
SELECT (SELECT step FROM samples_group WHERE run_id = %(run)s
           AND superseded_by IS NULL ORDER BY step LIMIT 1),
       (SELECT step FROM samples_group WHERE run_id = %(run)s
           AND superseded_by IS NULL ORDER BY step DESC LIMIT 1)
"""
# Groups are chosen by the hash of their id, so that everyone reads the same ones.
READ = """
WITH sampled AS MATERIALIZED (
    SELECT id, prompt_index, rule_names FROM samples_group
     WHERE run_id = %(run)s AND superseded_by IS NULL AND step = %(step)s
     ORDER BY hashint8(id), id LIMIT %(groups)s
)
SELECT g.prompt_index, g.rule_names, packed.rewards[:%(most)s],
       packed.num_tokens[:%(most)s], packed.rule_scores,
       ARRAY(SELECT left(text, %(chars)s)
               FROM unnest(packed.texts[:%(most)s]) WITH ORDINALITY own(text, ordinal)
              ORDER BY ordinal)
  FROM sampled g JOIN samples_groupcompletions packed ON packed.group_id = g.id
 ORDER BY g.prompt_index, g.id
"""
Phrases = NDArray[np.uint64]  # hashes
Counts = NDArray[np.int64]
NUM_WORDS = 4
MAX_PHRASES = 10
MAX_CANDIDATES = 100
LEAST_RISE = 0.05
MAX_QUOTED_CHARS = 198
EAST_ASIAN = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
WORD = re.compile(rf"[{EAST_ASIAN}]|[^\s{EAST_ASIAN}]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledGroup:
    prompt: int
    texts: list[str]
    # Numbers, here and below, are clipped.
    rewards: list[float | None]
    lengths: list[int | None]
    scores: dict[str, list[float | None]]  # by rule


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """Steps to be read, in such an order that the first ones are evenly spread too."""

    steps: list[int]
    num_between: int  # from the first to the last, whether chosen or not


def choose_steps(run: Run) -> Chosen:
    """Two queries."""
    with connection.cursor() as cursor:
        cursor.execute(ENDS, {"run": run.pk})
        first, last = cursor.fetchone()
    if first is None:
        return Chosen(steps=[], num_between=0)
    steps = steps_with_groups(run, first=first, last=last, most=MOST_STEPS)
    return Chosen(steps=list(_spread(steps)), num_between=last - first + 1)


def steps_with_groups(run: Run, *, first: int, last: int, most: int) -> list[int]:
    """So many at most, evenly spread, by rising step. One query."""
    every = max(1, -(-(last - first + 1) // most))
    given = {"run": run.pk, "first": first, "last": last, "every": every}
    with connection.cursor() as cursor:
        cursor.execute(STEPS, given)
        return [step for (step,) in cursor]


def _spread(steps: Sequence[int]) -> Iterator[int]:
    """
    >>> list(_spread([1, 2, 3, 4, 5]))
    [1, 5, 3, 2, 4]
    """
    width = 1 << max(0, len(steps) - 1).bit_length()
    if steps:
        yield steps[0]
    while width > 1:
        for index in range(width // 2, len(steps), width):
            yield steps[index]
        width //= 2


def read_groups(run: Run, step: int) -> list[SampledGroup]:
    """One query."""
    group_size = run.config.get("rollout", {}).get("group_size", GROUP_OF_AN_IMPORT)
    given = {
        "run": run.pk,
        "step": step,
        "groups": min(MOST_GROUPS, max(1, MOST_COMPLETIONS // group_size)),
        "chars": MOST_CHARS,
        "most": MOST_COMPLETIONS,
    }
    with connection.cursor() as cursor:
        cursor.execute(READ, given)
        return [
            SampledGroup(
                prompt=prompt,
                texts=texts,
                rewards=_clipped(rewards),
                lengths=lengths,
                scores={
                    rule: _clipped(scores[index :: len(rules)][: len(texts)])
                    for index, rule in enumerate(rules)
                },
            )
            for prompt, rules, rewards, lengths, scores, texts in cursor
        ]


def _clipped(values: Sequence[float | None]) -> list[float | None]:
    """None for values that are not finite."""
    return [None if v is None or not math.isfinite(v) else clip(v) for v in values]


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
    for index in range(NUM_WORDS):
        # FNV-1a's prime, which makes the hash depend on the order.
        mixed = (mixed ^ words[index : index + num]) * np.uint64(0x100000001B3)
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
        """As a quoted phrase for the word search; empty if the search would not find
        it."""
        has_words = any(char.isalnum() for char in self.words)
        is_found = (
            self.words.isascii() and has_words and len(self.words) < MAX_QUOTED_CHARS
        )
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
    """Up to ten phrases whose share of texts rose most, by at least 0.05; a phrase that
    shares two consecutive words with one already chosen is left out."""
    if not before or not after:
        return []
    found, counts = _count(after)
    was = _find_counts(found, *_count(before))
    rises = counts / len(after) - was / len(before)
    chosen: list[tuple[list[int], int, int]] = []
    for index in np.argsort(-rises, kind="stable")[:MAX_CANDIDATES].tolist():
        if rises[index] < LEAST_RISE or len(chosen) == MAX_PHRASES:
            break
        words = _words_of(found[index], after)
        if not any(_overlap(words, others) for others, _, _ in chosen):
            chosen.append((words, int(was[index]), int(counts[index])))
    spelled = vocabulary.spell([words for words, _, _ in chosen])
    return [
        Phrase(
            words=words,
            before=num_before,
            of_before=len(before),
            after=num_after,
            of_after=len(after),
        )
        for words, (_, num_before, num_after) in zip(spelled, chosen, strict=True)
    ]


def _count(texts: Sequence[Text]) -> tuple[Phrases, Counts]:
    """Each phrase, and in how many texts it is."""
    distinct = [np.unique(text.phrases) for text in texts]
    return np.unique(np.concatenate(distinct), return_counts=True)


def _find_counts(wanted: Phrases, known: Phrases, counts: Counts) -> Counts:
    found = np.zeros(len(wanted), np.int64)
    if len(known):
        indices = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        is_known = known[indices] == wanted
        found[is_known] = counts[indices[is_known]]
    return found


def _words_of(phrase: np.uint64, texts: Sequence[Text]) -> list[int]:
    for text in texts:
        indices = np.flatnonzero(text.phrases == phrase)
        if len(indices):
            words: list[int] = text.words[indices[0] : indices[0] + NUM_WORDS].tolist()
            return words
    raise AssertionError("the phrase was counted in these texts")


def _overlap(some: Sequence[int], others: Sequence[int]) -> bool:
    """Whether one continues the other, by two words or more."""
    return any(
        some[shift:] == others[: NUM_WORDS - shift]
        or others[shift:] == some[: NUM_WORDS - shift]
        for shift in range(NUM_WORDS - 1)
    )
