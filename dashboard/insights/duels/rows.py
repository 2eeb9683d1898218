"""Which prompt of one run is which of another: by number, or by what the row says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from django.db import connection
from numpy.typing import NDArray

from dashboard.runs.models import Run

# A row is the same where its prompt, its answer and its columns are; of several the
# first counts.
SAME = """
    SELECT ours.position, min(theirs.position)
      FROM datasets_datasetrow ours
      JOIN datasets_datasetrow theirs
        ON theirs.prompt = ours.prompt AND theirs.is_chat = ours.is_chat
       AND theirs.answer IS NOT DISTINCT FROM ours.answer
       AND theirs.columns = ours.columns
     WHERE ours.version_id = %s AND theirs.version_id = %s
       AND ours.position = ANY(%s)
     GROUP BY 1
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matching:
    """The other run's number of each prompt; without `numbers` they are the same."""

    numbers: dict[int, int] | None
    said: str  # how prompts were matched, where that is not by number

    def other(self, prompt: int) -> int | None:
        return prompt if self.numbers is None else self.numbers.get(prompt)


def match_rows(ours: Run, theirs: Run, prompts: NDArray[np.int32]) -> Matching:
    """Of the first run's prompts. One query, where the versions differ in content."""
    mine, its = ours.dataset_version, theirs.dataset_version
    if mine is None or its is None:
        without = ours.name if mine is None else theirs.name
        return Matching(numbers={}, said=f"{without} was imported without prompts.")
    if mine.content_sha256 == its.content_sha256:
        return Matching(numbers=None, said="")
    told = np.unique(prompts).tolist()
    with connection.cursor() as cursor:
        cursor.execute(SAME, [mine.pk, its.pk, told])
        numbers = dict(cursor.fetchall())
    said = (
        f"Matched by the contents of their rows, since {ours.name} has {mine} and "
        f"{theirs.name} {its}: {len(numbers):,} of {len(told):,} prompts are in both."
    )
    return Matching(numbers=numbers, said=said)
