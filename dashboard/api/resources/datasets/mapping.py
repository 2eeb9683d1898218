"""Which columns of a file become prompt and answer, and the import that follows."""

from __future__ import annotations

from typing import Annotated

from django.http import QueryDict
from pydantic import Field

from dashboard.accounts.models import User
from dashboard.api.filters import refuse_errors
from dashboard.api.problems import Problem
from dashboard.api.schemas import Input
from dashboard.datasets.import_forms import TAKEN, MappingForm
from dashboard.datasets.imports import Peek, begin_work, start_job
from dashboard.datasets.models import Dataset, ImportJob, Upload
from dashboard.datasets.parsing.records import Refusals
from dashboard.jobs.models import JobState


class MappingIn(Input):
    name: str | None = Field(
        default=None,
        max_length=400,
        description="Of a new dataset; without it, as the file is called.",
        examples=["sums"],
    )
    prompt: str | None = Field(
        default=None,
        max_length=1_000,
        description="The prompt's column; without it, guessed by name.",
        examples=["question"],
    )
    answer: str | None = Field(
        default=None,
        max_length=1_000,
        description="The answer's column; empty: no answer; without it, guessed.",
        examples=["answer"],
    )
    columns: list[str] | None = Field(
        default=None,
        max_length=200,
        description="Extra columns to keep; without it, as before or as guessed.",
    )
    leave_out: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(
        default=0,
        description="Imports the other rows if exactly so many rows have errors.",
    )


def map_columns(
    upload: Upload, seen: Peek, payload: MappingIn, *, place: str
) -> MappingForm:
    """The page's form, filled in and valid; what is wrong names its field."""
    guess = MappingForm(upload, seen.names).initial
    data = QueryDict(mutable=True)
    for name in ("name", "prompt", "answer"):
        given = getattr(payload, name)
        data[name] = (guess.get(name) or "") if given is None else given
    columns = guess.get("columns", []) if payload.columns is None else payload.columns
    data.setlist("columns", columns)
    form = MappingForm(upload, seen.names, data)
    if form.has_error("name", TAKEN):
        (error,) = form.errors.as_data()["name"]
        assert error.params is not None
        raise _refuse_name(error.params["dataset"], f"{place}.name")
    refuse_errors(form, place=place)
    return form


def _refuse_name(there: Dataset, place: str) -> Problem:
    """With a remedy for a program, where the form's is for a page."""
    sentence = (
        f'{there.team} already has a dataset named "{there.name}". Choose another '
        f"name, or send dataset_id: {there.pk} to add the rows as its next version."
    )
    return Problem(422, sentence, errors=[(place, sentence)])


def begin_import(
    upload: Upload,
    seen: Peek,
    payload: MappingIn,
    user: User,
    *,
    place: str,
    place_of_file: str,
) -> ImportJob:
    """Made at once where the file is small, else by a worker.

    `place` is where columns were named, `place_of_file` where the file was.
    """
    form = map_columns(upload, seen, payload, place=place)
    job, is_new = start_job(
        upload=upload,
        mapping=form.mapping,
        name=form.cleaned_data.get("name", ""),
        user=user,
        leave_out=payload.leave_out,
    )
    if not is_new:
        return job
    begin_work(job, at_once=seen.is_small)
    if job.is_refused:
        raise refuse_rows(Refusals.from_json(job.refusals), place_of_file)
    if job.state == JobState.FAILED:
        raise Problem(422, job.error, errors=[(place_of_file, job.error)])
    return job


def refuse_rows(refusals: Refusals, place: str) -> Problem:
    num_rows = f"{refusals.count:,} row{'s have' if refusals.count != 1 else ' has'}"
    return Problem(
        422,
        f"No rows imported: {num_rows} errors. Fix the file, or send "
        f"leave_out: {refusals.count} to import the others.",
        errors=[(place, str(refusal)) for refusal in refusals.shown[:20]],
    )
