"""Splits a version into two new datasets, train and held-out.

By share, the split of a row depends only on the seed and the words of its prompt, so
prompts with the same words are in the same split.
"""

from __future__ import annotations

from collections.abc import Iterator

from django.db import transaction
from django.db.models import F, Func, Q, TextField, Value
from django.db.models.functions import Coalesce

from dashboard.accounts.models import User
from dashboard.datasets.analysis.results import REPORT_ROWS, request
from dashboard.datasets.analysis.statistics import hash_of, normalized, prompt_text
from dashboard.datasets.models import DatasetRow, DatasetVersion, VersionSplit
from dashboard.datasets.row import Prompt
from dashboard.datasets.row_filters import are_few, read_rows_at
from dashboard.datasets.row_storage import StagedRows
from dashboard.datasets.services import Report, do_nothing, open_draft, store_version
from dashboard.project.errors import UserError


def is_held_out(prompt: Prompt, *, share: float, seed: int) -> bool:
    """Return whether the prompt is among `share` percent of all prompts."""
    place = hash_of(f"{seed}\0{normalized(prompt_text(prompt))}")
    return place / 2**64 < share / 100


def split_version(
    version: DatasetVersion,
    *,
    rule: dict[str, object],
    train_name: str,
    eval_name: str,
    user: User,
) -> VersionSplit:
    """Split the rows: a small version now, others in the background."""
    split = VersionSplit.objects.create(
        version=version,
        rule=rule,
        train_name=train_name,
        eval_name=eval_name,
        created_by=user,
        num_wanted=version.num_rows,
    )
    if are_few(version):
        make_split(split.pk)
        split.refresh_from_db()
    else:
        request(split, team_id=version.dataset.team_id)
    return split


def list_splits(version: DatasetVersion) -> list[VersionSplit]:
    """Newest first; requests lost ones again."""
    splits = list(
        version.splits.select_related(
            "train__dataset", "eval__dataset", "created_by"
        ).order_by("-pk")
    )
    for split in splits:
        request(split, team_id=version.dataset.team_id)
    return splits


def other_split(version: DatasetVersion) -> DatasetVersion | None:
    """Return the other half of the split that made the version, if it still exists."""
    made = VersionSplit.objects.select_related("train__dataset", "eval__dataset")
    split = made.filter(Q(train=version) | Q(eval=version)).order_by("-pk").first()
    if split is None:
        return None
    other = split.eval if split.train_id == version.pk else split.train
    return None if other is None or other.dataset.trashed_at else other


def make_split(pk: int, report: Report = do_nothing) -> None:
    split = VersionSplit.objects.select_related(
        "version__dataset__team", "created_by"
    ).get(pk=pk)
    if split.is_done or split.problem:
        return
    split.num_looked = 0
    with open_draft() as train_file, open_draft() as eval_file:
        train, held_out = StagedRows(train_file), StagedRows(eval_file)
        for row, is_eval in _assigned_rows(split, report):
            (held_out if is_eval else train).add(row.as_row())
        try:
            _store(split, train, held_out)
        except ValueError as error:
            VersionSplit.objects.filter(pk=pk, result__isnull=True).update(
                problem=str(error)
            )


def _assigned_rows(
    split: VersionSplit, report: Report
) -> Iterator[tuple[DatasetRow, bool]]:
    """Yield each row, and whether it is held out."""
    rows = split.version.rows.order_by("position")
    rule = split.rule
    if rule["by"] == "column":
        # The text of the value in SQL, as in the row filters.
        value = Func(
            F("columns"),
            Value(rule["column"]),
            template="(%(expressions)s)",
            arg_joiner=" ->> ",
            output_field=TextField(),
        )
        rows = rows.annotate(
            split_value=Coalesce(value, Value(""), output_field=TextField())
        )
    for row in read_rows_at(rows, range(split.version.num_rows)):
        split.num_looked += 1
        if rule["by"] == "column":
            is_eval = bool(row.split_value == rule["value"])  # type: ignore[attr-defined]  # annotated
        else:
            share, seed = rule["share"], rule["seed"]
            is_eval = is_held_out(row.prompt_value, share=share, seed=seed)
        yield row, is_eval
        if split.num_looked % REPORT_ROWS == 0:
            report(split.num_looked, split.num_wanted)


@transaction.atomic
def _store(split: VersionSplit, train: StagedRows, held_out: StagedRows) -> None:
    """Store both halves or none; UserError if one is empty."""
    # Two workers may have the job: the second finds it done.
    if VersionSplit.objects.select_for_update().get(pk=split.pk).is_done:
        return
    version = split.version
    num_read = train.num_rows + held_out.num_rows
    if num_read != version.num_rows:
        # Rows were deleted in the database; such a version cannot be trained on either.
        raise UserError(
            "datasets.rows_missing",
            f"{version} has {num_read:,} rows in the database, but was imported with "
            f"{version.num_rows:,}. Import it again as a new version.",
        )
    if not train.num_rows or not held_out.num_rows:
        which = "All" if held_out.num_rows else "None"
        raise UserError(
            "datasets.empty_split",
            f"{which} of the {version.num_rows:,} rows would be held out "
            f"({split.how}), but both splits need a row. Choose another share, "
            "seed or value.",
        )
    split.train = _store_split(split, train, "train", split.train_name)
    split.eval = _store_split(split, held_out, "eval", split.eval_name)
    split.result = {"train": train.num_rows, "eval": held_out.num_rows}
    split.save(update_fields=["train", "eval", "result", "num_looked"])


def _store_split(
    split: VersionSplit, staged: StagedRows, part: str, name: str
) -> DatasetVersion:
    version = split.version
    return store_version(
        staged,
        team=version.dataset.team,
        name=name,
        mapping=version.mapping,
        source={
            "kind": "split",
            "part": part,
            "parent": str(version),
            "parent_id": version.pk,
            "parent_sha256": version.content_sha256,
            "how": split.how,
            "rule": split.rule,
        },
        user=split.created_by,
        environment=version.environment,
    )
