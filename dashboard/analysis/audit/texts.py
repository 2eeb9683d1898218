"""A sample of a run's completions, and the phrases that they share.

Up to 60 evenly spaced steps are read, and of each as many groups as make 64 completions
by the run's group size (8 for an import), at most 64 completions of a group, and the
first 4,000 characters of each.

A piece is a word in lower case, a number, a mark, or a Chinese, Japanese or Korean
character. A phrase is four consecutive pieces.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dashboard.completions.models import policy_texts
from dashboard.project.database import fetch_all
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
    SELECT id, prompt_index FROM samples_group
     WHERE run_id = %(run)s AND superseded_by IS NULL AND step = %(step)s
     ORDER BY hashint8(id), id LIMIT %(groups)s
)
SELECT ARRAY(SELECT left(text, %(chars)s)
               FROM unnest(packed.texts[:%(most)s]) WITH ORDINALITY own(text, ordinal)
              ORDER BY ordinal),
       packed.turns, packed.rewards[:%(most)s]
  FROM sampled g JOIN samples_groupcompletions packed ON packed.group_id = g.id
 ORDER BY g.prompt_index, g.id
"""
PHRASE = 4  # pieces
EAST_ASIAN = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
PIECE = re.compile(rf"[{EAST_ASIAN}]|[^\W{EAST_ASIAN}]+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class SampledGroup:
    texts: list[str]
    rewards: list[float | None]  # clipped


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """Steps to be read, in such an order that the first ones are evenly spread too."""

    steps: list[int]
    num_between: int  # from the first to the last, whether chosen or not


def choose_steps(run: Run) -> Chosen:
    """Two queries."""
    ((first, last),) = fetch_all(ENDS, {"run": run.pk})
    if first is None:
        return Chosen(steps=[], num_between=0)
    steps = steps_with_groups(run, first=first, last=last, most=MOST_STEPS)
    return Chosen(steps=list(_spread(steps)), num_between=last - first + 1)


def steps_with_groups(run: Run, *, first: int, last: int, most: int) -> list[int]:
    """So many at most, evenly spread, by rising step. One query."""
    every = max(1, -(-(last - first + 1) // most))
    rows = fetch_all(
        STEPS, {"run": run.pk, "first": first, "last": last, "every": every}
    )
    return [step for (step,) in rows]


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
    """Read the step's groups; one query."""
    group_size = run.config.get("rollout", {}).get("group_size", GROUP_OF_AN_IMPORT)
    parameters = {
        "run": run.pk,
        "step": step,
        "groups": min(MOST_GROUPS, max(1, MOST_COMPLETIONS // group_size)),
        "chars": MOST_CHARS,
        "most": MOST_COMPLETIONS,
    }
    return [
        SampledGroup(
            policy_texts(texts, turns),
            [None if v is None or not math.isfinite(v) else clip(v) for v in rewards],
        )
        for texts, turns, rewards in fetch_all(READ, parameters)
    ]


@dataclass(frozen=True, slots=True)
class Text:
    """repeated: 1 - distinct phrases / phrases, rep-4 of Welleck et al. 2020
    (arXiv:1908.04319); NaN for a text of fewer than four pieces."""

    pieces: NDArray[np.uint32]  # by their numbers in the vocabulary, in order
    repeated: float


class Vocabulary:
    """Gives each piece a number, so that numpy can count them."""

    def __init__(self) -> None:
        self._numbers: defaultdict[str, int] = defaultdict()
        self._numbers.default_factory = self._numbers.__len__

    def read(self, text: str) -> Text:
        numbered = [self._numbers[piece] for piece in split(text)]
        phrases = list(
            zip(*(numbered[start:] for start in range(PHRASE)), strict=False)
        )
        repeated = 1 - len(set(phrases)) / len(phrases) if phrases else np.nan
        return Text(np.array(numbered, np.uint32), repeated)

    @property
    def pieces(self) -> list[str]:
        """By their numbers."""
        return list(self._numbers)


def split(text: str) -> list[str]:
    """
    >>> split("So 12+3=15,\\n15.")
    ['so', '12', '+', '3', '=', '15', ',', '15', '.']
    """
    return PIECE.findall(text.lower())
