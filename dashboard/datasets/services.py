"""Everything that writes datasets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from tempfile import TemporaryFile
from typing import IO, Any

from django.db import connection, transaction

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.datasets.models import Dataset, DatasetRow, DatasetVersion
from dashboard.datasets.rows import Content, Row, read_content, write_content


def create_dataset_version(
    *,
    team: Team,
    name: str,
    rows: Iterable[Row],
    mapping: Mapping[str, Any],
    source: Mapping[str, Any],
    user: User | None,
    dataset: Dataset | None = None,
) -> DatasetVersion:
    """Keep the rows as the next version of a dataset, or of a new one.

    Rows equal to the newest version's give that version back. ValueError when there
    are no rows, or when `dataset` is not given and the team has one of this name.
    """
    with TemporaryFile() as file:
        content = write_content(rows, file)
        if content.num_rows == 0:
            raise ValueError("There are 0 rows. A dataset needs at least one.")
        file.seek(0)
        with transaction.atomic():
            dataset = _lock(dataset) if dataset else _begin(team, name, user)
            newest = dataset.versions.order_by("-number").first()
            if newest and newest.content_sha256 == content.sha256:
                return newest
            version = dataset.versions.create(
                number=newest.number + 1 if newest else 1,
                content_sha256=content.sha256,
                num_rows=content.num_rows,
                mapping=dict(mapping),
                source=dict(source),
                created_by=user,
            )
            _copy_rows(version, file)
            _record(version, content, user)
    return version


def _lock(dataset: Dataset) -> Dataset:
    # Two uploads at once would otherwise both take the next number.
    return Dataset.objects.select_for_update().get(pk=dataset.pk)


def _begin(team: Team, name: str, user: User | None) -> Dataset:
    dataset, is_new = Dataset.objects.get_or_create(
        team=team, name=name, defaults={"created_by": user}
    )
    if not is_new:
        raise ValueError(
            f'{team} already has a dataset named "{name}". Choose another name, or '
            "upload the file as a new version of that dataset."
        )
    return dataset


def _copy_rows(version: DatasetVersion, file: IO[bytes]) -> None:
    table = DatasetRow._meta.db_table
    fields = "version_id, position, prompt, is_chat, answer, columns"
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY {table} ({fields}) FROM STDIN") as copy,
    ):
        for position, row in enumerate(read_content(file)):
            is_chat = not isinstance(row.prompt, str)
            prompt = _as_json(row.prompt) if is_chat else row.prompt
            columns = _as_json(row.columns)
            copy.write_row((version.pk, position, prompt, is_chat, row.answer, columns))


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _record(version: DatasetVersion, content: Content, user: User | None) -> None:
    record(
        version.dataset.team,
        user,
        "dataset.version_created",
        version,
        dataset=version.dataset.name,
        number=version.number,
        num_rows=content.num_rows,
        sha256=content.sha256,
    )
