"""Completions of some groups of some steps, read for what only they can tell.

A run has millions of texts. Of up to 60 steps, evenly spread, so many groups are read
that their completions are 64 at most, where groups are as large as the run's setting
says, or 8 of an import; of a larger group its first 64 are. Of each text it is the
first 4,000 characters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.db import connection

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
# Which groups is told by their number's hash, so that all readers read the same.
READ = """
WITH sampled AS MATERIALIZED (
    SELECT id, prompt_index, rule_names FROM samples_group
     WHERE run_id = %(run)s AND superseded_by IS NULL AND step = %(step)s
     ORDER BY hashint8(id), id LIMIT %(groups)s
)
SELECT g.prompt_index, g.rule_names, packed.rewards[:%(most)s],
       packed.num_tokens[:%(most)s], packed.rule_scores,
       ARRAY(SELECT left(text, %(chars)s)
               FROM unnest(packed.texts[:%(most)s]) WITH ORDINALITY own(text, place)
              ORDER BY place)
  FROM sampled g JOIN samples_groupcompletions packed ON packed.group_id = g.id
 ORDER BY g.prompt_index, g.id
"""


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
        for place in range(width // 2, len(steps), width):
            yield steps[place]
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
                    rule: _clipped(scores[place :: len(rules)][: len(texts)])
                    for place, rule in enumerate(rules)
                },
            )
            for prompt, rules, rewards, lengths, scores, texts in cursor
        ]


def _clipped(values: Sequence[float | None]) -> list[float | None]:
    """None of what is no number."""
    return [None if v is None or not math.isfinite(v) else clip(v) for v in values]
