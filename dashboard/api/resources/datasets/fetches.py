"""Files that a worker fetches: from a link, or from a dataset of the hub."""

from __future__ import annotations

from django.db import transaction
from django.http import HttpRequest
from ninja import Router, Status
from pydantic import Field

from dashboard.api.auth import WRITE, access_of
from dashboard.api.problems import or_refuse
from dashboard.api.resources.datasets.schemas import ImportOut, Number, find_dataset
from dashboard.api.schemas import Input
from dashboard.datasets.fetching.fetches import begin_fetch
from dashboard.datasets.fetching.links import read
from dashboard.datasets.imports import forget_what_is_old
from dashboard.datasets.queries import get_import_job
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
        description="Of a hub dataset: a split or file; empty: its upload lists them.",
        examples=["main/train"],
    )
    dataset_id: Number | None = Field(
        default=None, description="That gets a version more; null: a new dataset."
    )


@router.post(
    "/dataset-fetches", response={202: ImportOut}, summary="Fetch a file from a link"
)
def fetch_dataset(request: HttpRequest, payload: FetchIn) -> Status[ImportOut]:
    """A worker fetches it: ask for the import until it is done. Then import its upload,
    or fetch one of its `choices` as `part`."""
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
