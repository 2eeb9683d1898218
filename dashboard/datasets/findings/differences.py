"""Which rows differ between two versions: found once, kept."""

from __future__ import annotations

import numpy as np
from django.utils import timezone

from dashboard.datasets.analysis.differences import compare
from dashboard.datasets.analysis.gathering import Hashes, hash_of, prompt_key
from dashboard.datasets.findings.finding import ask, note, read_all
from dashboard.datasets.models import DatasetVersion, Finding, VersionDifference
from dashboard.datasets.rows.positions import as_bytes
from dashboard.datasets.rows.reading import are_few

POSITIONS = ("removed", "added", "changed")  # of VersionDifference
TASK = "datasets.make_difference"


def find_difference(old: DatasetVersion, new: DatasetVersion) -> VersionDifference:
    found, is_new = VersionDifference.objects.defer(*POSITIONS).get_or_create(
        old=old,
        new=new,
        defaults={
            "num_wanted": old.num_rows + new.num_rows,
            "moved_at": timezone.now(),
        },
    )
    if is_new and are_few(old, new):
        make_difference(found.pk)
        found.refresh_from_db(fields=["result", "num_looked"])
    else:
        ask(TASK, found, team_id=old.dataset.team_id, is_new=is_new)
    found.old, found.new = old, new  # which are at hand
    return found


def make_difference(pk: int) -> None:
    found = VersionDifference.objects.select_related("old", "new").get(pk=pk)
    if found.is_done:
        return
    found.num_looked = 0
    note(found)
    difference = compare(*_hashes(found, found.old), *_hashes(found, found.new))
    for name in POSITIONS:
        setattr(found, name, as_bytes(getattr(difference, name)))
    found.result = {
        **{name: len(getattr(difference, name)) for name in POSITIONS},
        "same": difference.num_same,
        "moved": difference.num_moved,
    }
    found.save(update_fields=[*POSITIONS, "result", "num_looked"])


def _hashes(found: Finding, version: DatasetVersion) -> tuple[Hashes, Hashes]:
    """Of the version's rows, and of their prompts."""
    rows = np.zeros(version.num_rows, np.uint64)
    prompts = np.zeros(version.num_rows, np.uint64)
    for at, row in enumerate(read_all(found, version, range(version.num_rows))):
        rows[at] = hash_of(row.canonical())
        prompts[at] = hash_of(prompt_key(row.prompt))
    return rows, prompts
