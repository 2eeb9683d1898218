"""Creates datasets and versions of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Protocol

from django.conf import settings
from django.db import transaction

from dashboard.accounts.members import check_storage
from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.datasets.models import Dataset, DatasetVersion
from dashboard.datasets.parsing.records import Refusals
from dashboard.datasets.queries import describe_version
from dashboard.datasets.row import Row
from dashboard.datasets.row_storage import StagedRows
from dashboard.project.errors import UserError

# Called with the progress and the total; an exception rolls everything back.
Report = Callable[[int, int], object]


def do_nothing(*_arguments: object) -> None:
    """Stand in for a report that is not read, as in a request."""


def create_dataset_version(
    *,
    team: Team,
    name: str,
    rows: Iterable[Row],
    mapping: Mapping[str, Any],
    source: Mapping[str, Any],
    user: User | None,
    dataset: Dataset | None = None,
    left_out: Refusals | None = None,
    on_stored: Report = do_nothing,
    on_made: Callable[[DatasetVersion], object] = do_nothing,
    environment: Mapping[str, Any] | None = None,
) -> DatasetVersion:
    """Store the rows as the next version of `dataset`, or of a new dataset.

    Returns the newest version if it has the same rows and environment. UserError if
    there are no rows, the storage quota is used up, or the name of a new dataset is
    taken. Without an `environment` the newest version's stays; an empty one is none.
    `left_out` is read after the last row. `on_stored` and `on_made` are called in the
    transaction that creates the version. Memory does not grow with the rows.
    """
    with open_draft() as file:
        staged = StagedRows(file, rows)
        if staged.num_rows == 0:
            raise UserError(
                "datasets.no_rows", "There are 0 rows. A dataset needs at least one."
            )
        on_stored(0, staged.num_rows)
        return store_version(
            staged,
            team=team,
            name=name,
            mapping=mapping,
            source=source,
            user=user,
            dataset=dataset,
            left_out=left_out,
            on_stored=on_stored,
            on_made=on_made,
            environment=environment,
        )


class Content(Protocol):
    """Valid rows, ready to be stored."""

    @property
    def num_rows(self) -> int: ...

    @property
    def sha256(self) -> str:
        """The hash of the rows as `write_content` writes them."""
        ...

    def store(self, version_id: int) -> Iterator[int]:
        """Store them part by part; how many are stored so far."""
        ...


@transaction.atomic
def store_version(
    content: Content,
    *,
    team: Team,
    name: str,
    mapping: Mapping[str, Any],
    source: Mapping[str, Any],
    user: User | None,
    dataset: Dataset | None = None,
    left_out: Refusals | None = None,
    on_stored: Report = do_nothing,
    on_made: Callable[[DatasetVersion], object] = do_nothing,
    environment: Mapping[str, Any] | None = None,
) -> DatasetVersion:
    """See `create_dataset_version`; there is at least one row."""
    check_storage(team, 0, purpose="a dataset")
    if dataset:
        dataset = _lock(dataset)
    else:
        dataset, is_new = Dataset.objects.get_or_create(
            team=team, name=name, trashed_at=None, defaults={"created_by": user}
        )
        if not is_new:
            raise UserError(
                "datasets.name_taken",
                f'{team} already has a dataset named "{name}". Choose another name, or '
                "upload the file as a new version of that dataset.",
            )
    newest = dataset.versions.order_by("-number").first()
    if environment is None and newest:
        environment = newest.environment
    kept = dict(environment or {}) or None
    is_same = newest and newest.content_sha256 == content.sha256
    if newest and is_same and newest.environment == kept:
        return newest
    version = dataset.versions.create(
        number=newest.number + 1 if newest else 1,
        content_sha256=content.sha256,
        num_rows=content.num_rows,
        num_left_out=left_out.count if left_out else 0,
        left_out=[item.as_json() for item in left_out.groups] if left_out else [],
        mapping=dict(mapping),
        source=dict(source),
        environment=kept,
        created_by=user,
    )
    for num_stored in content.store(version.pk):
        on_stored(num_stored, content.num_rows)
    for name, value in describe_version(version).items():
        setattr(version, name, value)
    version.save(update_fields=["first_prompt", "answer_type"])
    record(
        version.dataset.team,
        user,
        "dataset.version_created",
        version,
        dataset=version.dataset.name,
        number=version.number,
        num_rows=version.num_rows,
        num_left_out=version.num_left_out,
        sha256=version.content_sha256,
    )
    on_made(version)
    return version


def open_draft() -> IO[bytes]:
    # In the data folder, as /tmp is often memory.
    folder = Path(settings.COHORT_DATA)
    folder.mkdir(parents=True, exist_ok=True)
    return TemporaryFile(dir=folder)


def _lock(dataset: Dataset) -> Dataset:
    # Two uploads at once would otherwise both take the next number.
    locked = Dataset.objects.select_for_update().filter(pk=dataset.pk).first()
    if locked is None or locked.trashed_at:
        code, problem = (
            ("datasets.in_trash", "is in the trash. Restore it")
            if locked
            else ("datasets.deleted", "was deleted. Choose another dataset")
        )
        raise UserError(code, f"{dataset} {problem}, then import the rows again.")
    return locked
