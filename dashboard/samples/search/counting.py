"""How many completions some steps of a run have."""

from __future__ import annotations

import numpy as np
from django.db.models import Sum

from dashboard.runs.models import Run
from dashboard.samples.completion import NUM_COMPLETIONS
from dashboard.samples.models import Group, GroupCompletions
from dashboard.samples.search.columns import STEP


def count_completions(run: Run, *, first: int, last: int) -> int:
    """Of ten million, without reading their rows: steps that have a block, by it."""
    num, after = 0, -1
    blocks = run.completion_blocks.order_by("first_step")
    for block_end, packed in blocks.values_list("last_step", "steps"):
        steps = np.frombuffer(packed, STEP)
        within = (steps["step"] >= first) & (steps["step"] <= last)
        num += int(steps["num_completions"][within].sum(dtype=np.int64))
        after = block_end
    rest = Group.objects.current().filter(
        run=run, step__gt=max(after, first - 1), step__lte=last
    )
    stored = GroupCompletions.objects.filter(group__in=rest)
    return num + (stored.aggregate(num=Sum(NUM_COMPLETIONS))["num"] or 0)
