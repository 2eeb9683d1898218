"""All completions of one prompt of a run, the newest first, a page at a time."""

from __future__ import annotations

import numpy as np

from dashboard.runs.models import Run
from dashboard.samples.found import FoundPage
from dashboard.samples.models import Completion
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
    found = Completion.objects.filter(
        group__run=run,
        group__superseded_by=None,
        group__prompt_index=prompt,
        group__step__in=steps,
    )
    ordered = found.select_related("group").order_by("-group__step", "position")
    texts_of_prompts = ("group__prompt", "group__answer")
    completions = list(
        ordered.defer(*texts_of_prompts)[skipped : skipped + end - start]
    )
    page = FoundPage(
        ids=[completion.pk for completion in completions],
        number=number,
        num_pages=num_pages,
        first=start + 1 if total else 0,
        num_found=total,
        is_cut=False,
    )
    return page, completions
