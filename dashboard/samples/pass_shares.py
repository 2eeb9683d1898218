"""How often each prompt of a run was answered rightly, by the recipe of each step.

Rightly is with the highest reward that the recipe gives, as in pass@k. Completions that
no rule could score say nothing, so they are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from django.db import connection
from numpy.typing import NDArray

from dashboard.runs.charts.bounds import find_bounds
from dashboard.runs.models import Run
from dashboard.samples.models import Group
from dashboard.samples.recipes import right_from

_FIELDS = ("prompt", "num_seen", "last_step", "num_scored", "num_right")
TALLY = np.dtype([(name, np.int64) for name in _FIELDS])
_SQL = """
WITH visit AS (
    SELECT id, step, prompt_index,
           row_number() OVER (PARTITION BY prompt_index ORDER BY step DESC) AS nth
      FROM samples_group
     WHERE run_id = %s AND superseded_by IS NULL AND step BETWEEN %s AND %s
       AND prompt_index < %s
)
SELECT visit.prompt_index, count(DISTINCT visit.id), max(visit.step),
       count(completion.reward),
       count(*) FILTER (WHERE completion.reward >= bound.right_from)
  FROM visit
  JOIN unnest(%s::int[], %s::float8[]) AS bound(step, right_from)
    ON bound.step = visit.step
  JOIN samples_completion completion ON completion.group_id = visit.id
 WHERE visit.nth <= %s
 GROUP BY visit.prompt_index
 ORDER BY visit.prompt_index
"""

Tallies = NDArray[np.void]


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Steps that have groups, and of them the last visits of each prompt."""

    first: int
    last: int
    num_visits: int

    @property
    def words(self) -> str:
        steps = f"steps {self.first:,} to {self.last:,}"
        if self.num_visits == 1:
            return f"the last time each was seen in {steps}"
        return f"the last {self.num_visits:,} times each was seen in {steps}"


def find_span(
    run: Run, *, first: int | None, last: int | None, num_visits: int
) -> Span | None:
    """None where no step of these has groups."""
    groups = Group.objects.current().filter(run=run)
    bounds = find_bounds(groups, first, last)
    if bounds is None:
        return None
    return Span(first=bounds[0], last=bounds[1], num_visits=num_visits)


def tally(run: Run, span: Span) -> Tallies:
    """One for each prompt that was seen, by its number; 40 bytes each, and two queries.

    ValueError where nobody can tell what is right.
    """
    groups = Group.objects.current().filter(run=run)
    steps = groups.filter(step__gte=span.first, step__lte=span.last)
    bounds = right_from(run, steps.order_by().values_list("step", flat=True).distinct())
    with connection.cursor() as cursor:
        cursor.execute(
            _SQL,
            [
                run.pk,
                span.first,
                span.last,
                run.dataset_version.num_rows,
                list(bounds),
                list(bounds.values()),
                span.num_visits,
            ],
        )
        return np.fromiter(cursor, TALLY)


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Of the prompts that were seen."""

    seen: int
    unscored: int
    unsolved: int
    mixed: int
    solved: int  # each time


def count(tallies: Tallies) -> Counts:
    right, scored = tallies["num_right"], tallies["num_scored"]
    return Counts(
        seen=len(tallies),
        unscored=int((scored == 0).sum()),
        unsolved=int(((scored > 0) & (right == 0)).sum()),
        mixed=int(((right > 0) & (right < scored)).sum()),
        solved=int(((scored > 0) & (right == scored)).sum()),
    )


def select(tallies: Tallies, *, low: float, high: float) -> Tallies:
    """Those of which low to high percent were right, the hardest first."""
    right, scored = tallies["num_right"], tallies["num_scored"]
    # Multiplied out, so that a share of exactly the bound is within it.
    fits = (scored > 0) & (right * 100 >= low * scored) & (right * 100 <= high * scored)
    found = tallies[fits]
    share = found["num_right"] / found["num_scored"]
    return found[np.lexsort((found["prompt"], share))]
