"""Looks through a version's rows: asked for by a page, made by a worker, kept.

A finding that no worker has got on with for a while is asked for again, so a task that
is lost with its broker or its worker costs time and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import numpy as np
from django.db import transaction
from django.utils import timezone

from dashboard.datasets.background import send_task
from dashboard.datasets.differences import compare
from dashboard.datasets.gathering import Gatherer, Hashes, hash_of, prompt_key
from dashboard.datasets.models import (
    DatasetVersion,
    Finding,
    TokenLengths,
    VersionDifference,
    VersionStatistics,
)
from dashboard.datasets.position_lists import as_bytes
from dashboard.datasets.reading import are_few, read_rows_at
from dashboard.datasets.rows import Row
from dashboard.datasets.token_counting import Uncountable, count_tokens

MAX_TOKENIZED = 50_000
PATIENCE = timedelta(minutes=2)
REPORT_SECONDS = 1.0
POSITIONS = ("removed", "added", "changed")  # of VersionDifference


def find_statistics(version: DatasetVersion) -> VersionStatistics:
    """The version's; asked for at the first look."""
    found, is_new = VersionStatistics.objects.get_or_create(
        version=version,
        defaults={"num_wanted": version.num_rows, "moved_at": timezone.now()},
    )
    if is_new and are_few(version):
        make_statistics(found.pk)
        found.refresh_from_db()
    else:
        ask("datasets.make_statistics", found, is_new=is_new)
    return found


def find_token_lengths(version: DatasetVersion, model: str) -> TokenLengths:
    found, is_new = TokenLengths.objects.get_or_create(
        version=version,
        model=model,
        defaults={
            "num_wanted": min(version.num_rows, MAX_TOKENIZED),
            "moved_at": timezone.now(),
        },
    )
    ask("datasets.make_token_lengths", found, is_new=is_new)
    return found


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
        ask("datasets.make_difference", found, is_new=is_new)
    found.old, found.new = old, new  # which are at hand
    return found


def ask_again(found: Finding) -> None:
    """What failed may have been mended since."""
    type(found)._default_manager.filter(pk=found.pk).exclude(problem="").update(
        problem="", num_looked=0, moved_at=timezone.now() - PATIENCE
    )


def ask(task: str, found: Finding, *, is_new: bool) -> None:
    if found.is_done or found.problem:
        return
    waits = found.moved_at < timezone.now() - PATIENCE
    if waits:
        note(found)
    if waits or is_new:
        transaction.on_commit(lambda: send_task(task, found.pk))


def make_statistics(pk: int) -> None:
    found = VersionStatistics.objects.select_related("version").get(pk=pk)
    if found.is_done:
        return
    gatherer = Gatherer(found.version.num_rows)
    for row in _reported(found, range(found.version.num_rows)):
        gatherer.add(row)
    if gatherer.num_added != gatherer.num_rows:
        # Whoever reached into the database; freezing such a version fails as well.
        VersionStatistics.objects.filter(pk=pk).update(
            problem=f"{found.version} has {gatherer.num_added:,} rows in the database, "
            f"but was imported with {gatherer.num_rows:,}. Import it again as a new "
            "version."
        )
        return
    finish(found, gatherer.result())


def make_token_lengths(pk: int) -> None:
    found = TokenLengths.objects.select_related("version").get(pk=pk)
    if found.is_done or found.problem:
        return
    every = -(-found.version.num_rows // MAX_TOKENIZED)
    rows = _reported(found, range(0, found.version.num_rows, every))
    try:
        lengths = count_tokens(found.model, rows)
    except Uncountable as error:
        TokenLengths.objects.filter(pk=pk).update(problem=str(error))
        return
    result = {"lengths": sorted(lengths.items()), "every": every}
    finish(found, result)


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


def finish(found: Finding, result: dict[str, object]) -> None:
    found.result = result
    found.save(update_fields=["result", "num_looked", "num_wanted"])


def _reported(found: VersionStatistics | TokenLengths, wanted: range) -> Iterator[Row]:
    found.num_wanted, found.num_looked = len(wanted), 0
    note(found)
    return read_all(found, found.version, wanted)


def read_all(found: Finding, version: DatasetVersion, wanted: range) -> Iterator[Row]:
    """The wanted rows; how many were given out is written down each second."""
    noted = time.monotonic()
    for row in read_rows_at(version.rows.all(), wanted):
        found.num_looked += 1
        yield row.as_row()
        if time.monotonic() - noted > REPORT_SECONDS:
            note(found)
            noted = time.monotonic()


def note(found: Finding) -> None:
    found.moved_at = timezone.now()
    found.save(update_fields=["num_looked", "num_wanted", "moved_at"])
