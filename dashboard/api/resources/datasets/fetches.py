"""Files that a worker fetches: from a link, or from a dataset of the hub."""

from __future__ import annotations

from django.db import transaction
from django.http import HttpRequest
from ninja import Router, Status
from pydantic import Field

from dashboard.api.auth import WRITE, access_of
from dashboard.api.problems import Problem, or_refuse, refuse_field
from dashboard.api.resources.datasets.schemas import ImportOut, Number, find_dataset
from dashboard.api.schemas import Id, Input
from dashboard.datasets.fetching.fetches import begin_fetch, choices_of, choose
from dashboard.datasets.fetching.links import read
from dashboard.datasets.imports.uploads import forget_what_is_old
from dashboard.datasets.queries import get_import_job, get_upload
from dashboard.jobs.queue import notify_workers

router = Router(tags=["Dataset uploads"], auth=WRITE)


class FetchIn(Input):
    link: str = Field(
        min_length=1,
        max_length=4_000,
        description="https://… of a file, or owner/name of the Hugging Face hub.",
        examples=["openai/gsm8k"],
    )
    revision: str = Field(
        default="", max_length=200, description="Of a hub dataset; empty: main."
    )
    part: str = Field(
        default="",
        max_length=500,
        description="Of a hub dataset: a split or file; empty: choose afterwards.",
        examples=["main/train"],
    )
    dataset_id: Number | None = Field(
        default=None, description="That gets a version more; null: a new dataset."
    )


@router.post(
    "/dataset-fetches", response={202: ImportOut}, summary="Fetch a file from a link"
)
def fetch_dataset(request: HttpRequest, payload: FetchIn) -> Status[ImportOut]:
    """A worker fetches it: ask for the import until it is done. Then look at its
    upload: choose from a hub dataset's `choices`, or import it."""
    access = access_of(request)
    dataset = find_dataset(access.team, payload.dataset_id)
    with or_refuse("body.link"):
        link = read(payload.link, revision=payload.revision, part=payload.part)
        forget_what_is_old()
        job = begin_fetch(
            team=access.team, user=access.user, link=link, dataset=dataset
        )
    transaction.on_commit(lambda: notify_workers("default"))
    return Status(202, ImportOut.of(get_import_job(access.team, job.pk)))


class ChoiceIn(Input):
    choice: str = Field(max_length=500, examples=["main/train"])


@router.post(
    "/dataset-uploads/{upload_id}/choice",
    response={202: ImportOut},
    summary="Choose a split or file",
)
def choose_dataset_part(
    request: HttpRequest, upload_id: Id, payload: ChoiceIn
) -> Status[ImportOut]:
    """Of a hub dataset, one of the upload's `choices`; a worker fetches it."""
    access = access_of(request)
    upload = get_upload(access.team, upload_id)
    choices = choices_of(upload)
    if not choices:
        raise Problem(409, f"There is nothing to choose from for {upload.filename}.")
    picked = next((one for one in choices if one.name == payload.choice), None)
    if picked is None:
        names = ", ".join(one.name for one in choices[:10])
        raise refuse_field(
            "body.choice",
            f"There is no {payload.choice[:80]!r}. There are {len(choices):,} choices, "
            f"such as {names}.",
        )
    job = choose(upload, picked, access.user)
    transaction.on_commit(lambda: notify_workers("default"))
    return Status(202, ImportOut.of(get_import_job(access.team, job.pk)))
