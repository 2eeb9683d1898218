"""All completions of one prompt of a run, the newest first, a page at a time."""

from __future__ import annotations

import numpy as np

from dashboard.runs.models import Run
from dashboard.samples.groups import FoundPage
from dashboard.samples.models import Completion, Group
from dashboard.samples.prompt_visits import Visits

PAGE_SIZE = 20


def read_completions_of(
    run: Run, prompt: int, visits: Visits, *, number: int
) -> tuple[FoundPage, list[Completion]]:
    """The page of this number, or the last one. One query.

    How many each visit has is known, so only the groups of the page are looked at,
    however many there are.
    """
    newest = visits[::-1]
    ends = np.cumsum(newest["num_completions"])
    total = int(ends[-1]) if len(ends) else 0
    num_pages = max(1, -(-total // PAGE_SIZE))
    number = min(number, num_pages)
    start = (number - 1) * PAGE_SIZE
    end = min(start + PAGE_SIZE, total)
    from_group = int(np.searchsorted(ends, start, side="right"))
    to_group = int(np.searchsorted(ends, end)) + 1
    skipped = start - (int(ends[from_group - 1]) if from_group else 0)
    steps = newest["step"][from_group:to_group].tolist()
    groups = Group.objects.current().filter(
        run=run, prompt_index=prompt, step__in=steps
    )
    ordered = groups.defer("prompt", "answer").order_by("-step")
    whole = ordered.select_related("packed_completions")
    found = [each for group in whole for each in group.completions]
    completions = found[skipped : skipped + end - start]
    page = FoundPage(
        num_shown=len(completions),
        number=number,
        num_pages=num_pages,
        first=start + 1 if total else 0,
        num_found=total,
        is_cut=False,
    )
    return page, completions
