"""Which rows differ between two versions: found once, kept."""

from __future__ import annotations

import numpy as np

from dashboard.datasets.analysis.differences import compare
from dashboard.datasets.analysis.gathering import Hashes, hash_of, prompt_key
from dashboard.datasets.findings.finding import Report, ask, finish, read_all, unheard
from dashboard.datasets.models import DatasetVersion, Finding, VersionDifference
from dashboard.datasets.rows.positions import as_bytes
from dashboard.datasets.rows.reading import are_few

POSITIONS = ("removed", "added", "changed")  # of VersionDifference


def find_difference(old: DatasetVersion, new: DatasetVersion) -> VersionDifference:
    found, is_new = VersionDifference.objects.defer(*POSITIONS).get_or_create(
        old=old,
        new=new,
        defaults={"num_wanted": old.num_rows + new.num_rows},
    )
    if is_new and are_few(old, new):
        make_difference(found.pk)
        found.refresh_from_db(fields=["result", "num_looked"])
    else:
        ask(found, team_id=old.dataset.team_id)
    found.old, found.new = old, new  # which are at hand
    return found


def make_difference(pk: int, report: Report = unheard) -> None:
    found = VersionDifference.objects.select_related("old", "new").get(pk=pk)
    if found.is_done:
        return
    found.num_looked = 0
    old, new = _hashes(found, found.old, report), _hashes(found, found.new, report)
    difference = compare(*old, *new)
    for name in POSITIONS:
        setattr(found, name, as_bytes(getattr(difference, name)))
    result = {
        **{name: len(getattr(difference, name)) for name in POSITIONS},
        "same": difference.num_same,
        "moved": difference.num_moved,
    }
    finish(found, result, *POSITIONS)


def _hashes(
    found: Finding, version: DatasetVersion, report: Report
) -> tuple[Hashes, Hashes]:
    """Of the version's rows, and of their prompts."""
    rows = np.zeros(version.num_rows, np.uint64)
    prompts = np.zeros(version.num_rows, np.uint64)
    wanted = range(version.num_rows)
    for at, row in enumerate(read_all(found, version, wanted, report)):
        rows[at] = hash_of(row.canonical())
        prompts[at] = hash_of(prompt_key(row.prompt))
    return rows, prompts
