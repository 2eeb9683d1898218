"""What came to nothing is tried again, whatever kind of import it was."""

from __future__ import annotations

from dashboard.accounts.models import User
from dashboard.datasets.fetching.fetches import fetch_again
from dashboard.datasets.generated import start_generation_again
from dashboard.datasets.imports.jobs import start_job
from dashboard.datasets.imports.mapping import Mapping
from dashboard.datasets.models import ImportJob
from dashboard.datasets.queries import find_upload
from dashboard.datasets.selections import start_again
from dashboard.jobs.models import JobState


def start_job_again(job: ImportJob, user: User) -> ImportJob:
    """The job anew; itself where it is done, or where there is nothing to read."""
    upload = find_upload(job)
    if job.is_fetch:
        return fetch_again(upload, user) if upload else job
    if job.state == JobState.DONE:
        return job
    if job.is_generated:
        return start_generation_again(job, user)
    if job.parent:
        return start_again(job, user)[0]
    if upload is None:
        return job
    again, _ = start_job(
        upload=upload,
        mapping=Mapping.from_json(job.mapping),
        name=job.name,
        user=user,
        leave_out=job.leave_out,
    )
    return again
