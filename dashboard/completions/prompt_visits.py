"""Each group of a run's prompts, with its number of right completions.

Right is what `correctness_by_step` says, as in pass@k.
Rollups contain these numbers. Groups of a step in progress, and of runs older than the
rollups' column, are counted. No texts are read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from django.db import connection
from django.db.models import F
from numpy.typing import NDArray

from dashboard.completions.models import Group
from dashboard.completions.rewards import correctness_by_step, step_recipe
from dashboard.completions.signals.records import (
    GROUP,
    PASSES,
    Records,
    fetch_packed,
    unpack,
)
from dashboard.project.database import fetch_all
from dashboard.project.errors import or_404
from dashboard.runs.charts.series import find_bounds
from dashboard.runs.models import Run
from trainer.curriculum import place_within

# Small, as a run may have a million.
VISIT = np.dtype(
    [
        ("prompt", np.int32),
        ("step", np.int32),
        ("num_completions", np.uint16),
        ("num_scored", np.uint16),  # with a known outcome
        ("num_right", np.uint16),
        ("mean", np.float32),  # of the rewards, NaN without one; so is their std
        ("std", np.float32),
    ]
)
GRADED = np.dtype(
    [
        (name, np.float64 if name == "num_right" else VISIT[name])
        for name in VISIT.names or ()
    ]
)
Visits = NDArray[np.void]
NUM_LAST = 3  # groups of a prompt that its pass rate is of, unless chosen

ROLLED_UP = """
SELECT string_agg(int4send(step), ''::bytea ORDER BY step),
       string_agg(groups, ''::bytea ORDER BY step),
       string_agg(passes, ''::bytea ORDER BY step)
  FROM samples_steprollup
 WHERE run_id = %s AND superseded_by IS NULL AND step BETWEEN %s AND %s
   AND (passes <> ''::bytea OR groups = ''::bytea)
"""
COUNTED = """
SELECT visit.prompt_index, visit.step, coalesce(cardinality(packed.rewards), 0),
       of_group.num_scored, of_group.num_right,
       coalesce(visit.reward_mean, 'NaN'), coalesce(visit.reward_std, 'NaN')
  FROM samples_group visit
  JOIN jsonb_to_recordset(%s) AS bound(
           step int, is_known bool, least_reward float8, names text[], needed float8[])
    ON bound.step = visit.step
  LEFT JOIN samples_groupcompletions packed ON packed.group_id = visit.id
 CROSS JOIN LATERAL (
       SELECT count(reward) FILTER (WHERE bound.is_known) AS num_scored,
              count(reward) FILTER (WHERE CASE WHEN bound.names = '{}'
                  THEN reward >= bound.least_reward
                  ELSE (SELECT bool_and(scores.score >= rule.needed)
                          FROM unnest(bound.names, bound.needed) rule(name, needed),
                               unnest(visit.rule_names, packed.rule_scores[
                                   (place - 1) * cardinality(visit.rule_names) + 1 :
                                   place * cardinality(visit.rule_names)
                               ]) scores(name, score)
                         WHERE scores.name = rule.name) END) AS num_right
         FROM unnest(packed.rewards) WITH ORDINALITY completion(reward, place)) of_group
 WHERE visit.run_id = %s AND visit.superseded_by IS NULL
   AND (%s::int IS NULL OR visit.prompt_index = %s)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Steps that have groups."""

    first: int
    last: int

    @property
    def words(self) -> str:
        if self.first == self.last:
            return f"step {self.first:,}"
        return f"steps {self.first:,} to {self.last:,}"


def find_span(run: Run, *, first: int | None, last: int | None) -> Span | None:
    """Find the span; None if no step of these has groups."""
    bounds = find_bounds(Group.objects.current().filter(run=run), first, last)
    return None if bounds is None else Span(first=bounds[0], last=bounds[1])


def newest_group(run: Run, prompt: int) -> Group:
    """Find the newest group, a superseded one only if there is no other; or 404."""
    groups = Group.objects.filter(run=run, prompt_index=prompt)
    current_first = F("superseded_by").desc(nulls_first=True)
    newest = (
        groups.current().order_by("-step").first()
        or groups.order_by(current_first, "-step").first()
    )
    return or_404(newest, f"Run {run.pk} has no group of prompt {prompt}.")


def read_visits(run: Run, span: Span, *, prompt: int | None = None) -> Visits:
    """Read visits of all prompts or of one, by prompt and then by step; one query.

    Three queries where steps are not rolled up.
    """
    (row,) = fetch_packed(ROLLED_UP, [run.pk, span.first, span.last])
    packed_steps, groups, passes = (packed or b"" for packed in row)
    rolled = _visits_of(unpack(groups, GROUP), unpack(passes, PASSES))
    if prompt is not None:
        rolled = rolled[rolled["prompt"] == prompt]
    counted = _count(
        run, holes_in(unpack(packed_steps, ">i4").astype(np.int64), span), prompt
    )
    # By prompt, then by step (the order of rollups).
    visits = np.concatenate([rolled, counted]) if len(counted) else rolled
    steps, prompts = visits["step"], visits["prompt"]
    if len(visits) and (np.diff(steps) < 0).any():
        return visits.take(np.lexsort((steps, prompts)))
    # For 16 bits numpy uses a radix sort, many times as fast. `take` is eight times as
    # fast as indexing for records.
    is_small = not len(visits) or prompts.max() < 2**16
    return visits.take(
        np.argsort(prompts.astype(np.uint16) if is_small else prompts, kind="stable")
    )


def _visits_of(groups: Records, passes: Records) -> Visits:
    visits = np.empty(len(groups), VISIT)
    for name in ("prompt", "step", "num_completions", "mean", "std"):
        visits[name] = groups[name]
    for name in ("num_scored", "num_right"):
        visits[name] = passes[name]
    return visits


def grade(run: Run, visits: Visits) -> Visits:
    """Count right completions as a curriculum does, where no rule reads answers.

    A completion then counts as its reward's place between the bounds of the recipe, so
    the count of a group is a fraction.
    """
    if run.is_imported:
        return visits
    visits, order = visits.astype(GRADED), np.argsort(visits["step"], kind="stable")
    steps, starts = np.unique(visits["step"][order], return_index=True)
    known = correctness_by_step(run, steps.tolist()).items()
    for (step, correctness), at in zip(known, np.split(order, starts[1:]), strict=True):
        if not correctness.full_scores and (recipe := step_recipe(run, step)):
            shares = place_within(visits["mean"][at], recipe, step=step)
            right = np.nan_to_num(shares) * visits["num_scored"][at]
            visits["num_right"][at] = right
    return visits


def holes_in(steps: NDArray[np.int64], span: Span) -> list[tuple[int, int]]:
    """List the ranges of the span, first and last, without rollups.

    >>> holes_in(np.array([3, 4, 8]), Span(first=1, last=9))
    [(1, 2), (5, 7), (9, 9)]
    """
    ends = np.concatenate([[span.first - 1], steps, [span.last + 1]])
    return [
        (int(ends[i]) + 1, int(ends[i + 1]) - 1)
        for i in np.flatnonzero(np.diff(ends) > 1)
    ]


def _count(run: Run, holes: list[tuple[int, int]], prompt: int | None) -> Visits:
    """Two queries, none without holes."""
    if not holes:
        return np.empty(0, VISIT)
    steps = _steps_within(run, holes)
    bounds = [
        {
            "step": step,
            "is_known": correctness.is_known,
            "least_reward": correctness.least_reward,
            "names": list(correctness.full_scores),
            "needed": list(correctness.full_scores.values()),
        }
        for step, correctness in correctness_by_step(run, steps).items()
    ]
    with connection.cursor() as cursor:  # a row at a time: there may be a million
        cursor.execute(COUNTED, [json.dumps(bounds), run.pk, prompt, prompt])
        return np.fromiter(cursor, VISIT)


def _steps_within(run: Run, holes: list[tuple[int, int]]) -> list[int]:
    firsts, lasts = zip(*holes, strict=True)
    rows = fetch_all(
        "SELECT DISTINCT step FROM samples_group"
        "  JOIN unnest(%s::int[], %s::int[]) AS hole(first, last)"
        "    ON step BETWEEN hole.first AND hole.last"
        " WHERE run_id = %s AND superseded_by IS NULL ORDER BY step",
        [list(firsts), list(lasts), run.pk],
    )
    return [step for (step,) in rows]
