"""The models a run can start from: those made here, and whatever is typed."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

from dashboard.accounts.models import Team
from dashboard.runs.launch.published import published_at
from trainer.config import HUB_ID

TITLES = {
    "countdown": "Countdown starter (0.6 M)",
    "smollm2": "SmolLM2-135M-Instruct",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StarterModel:
    """A folder with a whole model, and perhaps the settings it was made for."""

    key: str  # the folder's name
    title: str
    folder: Path

    @property
    def path(self) -> str:
        return str(self.folder / "model")

    @property
    def has_settings(self) -> bool:
        return (self.folder / "run.toml").is_file()

    def read_settings(self) -> dict[str, Any]:
        """The tree of the run this model was made for."""
        text = (self.folder / "run.toml").read_text(encoding="utf-8")
        return tomllib.loads(text)


def offered_models(team: Team) -> list[StarterModel]:
    """The starters, and what the team has published."""
    published = team.published_models.order_by("-pk")
    return starter_models() + [
        StarterModel(
            key=f"published-{model.pk}",
            title=f"{model} ({model.lineage})",
            folder=model.folder,
        )
        for model in published
    ]


def starter_models() -> list[StarterModel]:
    folders = sorted((settings.COHORT_DATA / "starter").glob("*/"))
    return [
        StarterModel(key=folder.name, title=title_of(folder.name), folder=folder)
        for folder in folders
        if _is_complete(folder)
    ]


def _is_complete(folder: Path) -> bool:
    if not (folder / "model" / "config.json").is_file():
        return False
    # A warm-up writes starter.json last of all; a pretrained model appears whole,
    # and alone.
    names = {path.name for path in folder.iterdir()}
    return "starter.json" in names or names == {"model"}


def title_of(key: str) -> str:
    """What a starter model is called, by its folder's name."""
    return TITLES.get(key) or key.replace("-", " ").replace("_", " ").capitalize()


def label_model(path: str) -> str:
    """A short name for the run list: a starter's title, a folder's name or a hub id."""
    for starter in starter_models():
        if starter.path == path:
            return starter.title
    if model := published_at(path):
        return f"{model} ({model.lineage})"
    return Path(path).name if _is_folder(path) else path


def check_model(path: str) -> str | None:
    """What is wrong with a typed model, or None."""
    if not path:
        return "Choose a model, or type a folder or a hub id."
    if not _is_folder(path):
        if HUB_ID.fullmatch(path):
            return None
        return (
            f"“{path}” is neither a folder (which starts with /) nor a hub id such as "
            "Qwen/Qwen2.5-0.5B-Instruct."
        )
    # Elsewhere, only the workers may see the folder; they say so when they do not.
    # os.path, as pathlib raises where a name is too long or a folder is locked.
    config = os.path.join(path, "config.json")
    if settings.DATABASE_IS_EMBEDDED and not os.path.isfile(config):
        return (
            f"There is no saved model in “{path}”: a config.json is missing there. "
            "Give the folder that save_pretrained wrote."
        )
    return None


def _is_folder(path: str) -> bool:
    return path.startswith("/")
