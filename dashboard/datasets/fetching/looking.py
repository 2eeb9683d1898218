"""Looking a dataset of the hub up: what of it there is, and what was meant."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from dashboard.datasets.fetching.choices import (
    MAX_CHOICES,
    Choice,
    pick,
    single_files,
    splits_of_card,
    splits_of_conversion,
)
from dashboard.datasets.fetching.hub import CONVERTED, Hub
from dashboard.datasets.fetching.links import HubLink
from dashboard.datasets.fetching.request import NotFetched

MAIN = "main"
MAX_LISTED_FILES = 10_000  # of all choices together, each with its path and hashes


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    dataset: str
    choices: list[Choice]
    num_choices: int  # more than are listed, where the list was cut
    remark: str
    picked: Choice | None

    def as_json(self) -> dict[str, Any]:
        """What an upload keeps of it, until one is chosen."""
        return {
            "choices": [one.as_json() for one in self.choices],
            "num_choices": self.num_choices,
            "remark": self.remark,
            "chosen": self.picked.as_json() if self.picked else None,
        }


def look(hub: Hub, link: HubLink) -> Found:
    """NotFetched where there is nothing that could be read."""
    revision = link.revision or MAIN
    commit = hub.find(link.dataset, revision)
    files = single_files(commit, revision)
    named = next((one for one in files if one.name == link.part.strip("/")), None)
    splits = [] if named else splits_of_card(commit, revision)
    if not (splits or named or link.revision):
        splits = _converted(hub, commit.dataset)
    choices = [*splits, *files]
    if not choices:
        raise NotFetched(
            f"{commit.dataset} at {revision} has {len(commit.files):,} files, and none "
            "of them is JSONL, JSON, CSV, TSV or Parquet. Give the URL of a file of "
            "another form, or upload one."
        )
    picked = pick(choices, link.part)
    missed = link.part and picked is None
    return Found(
        dataset=commit.dataset,
        choices=[] if picked else _listed(choices),
        num_choices=len(choices),
        remark=f"There is no split or file “{link.part}”, or more than one."
        if missed
        else "",
        picked=picked,
    )


def _listed(choices: list[Choice]) -> list[Choice]:
    """As many as a page should hold, and the database for as long as it is waited."""
    num_files = accumulate(len(one.files) for one in choices)
    fitting = sum(1 for so_far in num_files if so_far <= MAX_LISTED_FILES)
    return choices[: min(fitting, MAX_CHOICES)]


def _converted(hub: Hub, dataset: str) -> list[Choice]:
    """Splits that the hub made of it; none where it has not."""
    try:
        commit = hub.find(dataset, CONVERTED)
    except NotFetched as error:
        if error.status in (401, 403, 404):
            return []
        raise
    return splits_of_conversion(commit, CONVERTED)
