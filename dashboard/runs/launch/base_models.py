"""The models a run can start from: starters, the team's own, a folder or a Hub ID."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.token_preview import DATA_FOLDER, refuse_model, within_data
from dashboard.datasets.tokenizer_pool import refuse_environment
from dashboard.project.errors import UserError
from dashboard.runs.models import ENDED, PublishedModel, Run
from trainer.config import HUB_ID, named_models
from trainer.disk import open_inside

MAX_BYTES = 1_000_000  # bytes; the largest published ones have some thousands
TITLES = {
    "countdown": "Countdown starter (0.6 M)",
    "guess": "Guess starter (0.6 M)",
    "rlox": "rlox toy (0.02 M)",
    "smollm2": "SmolLM2-135M-Instruct",
}


def read_model_config(folder: Path) -> dict[str, Any] | None:
    """Return its parsed config.json, if this machine can read one."""
    return _read_tree(folder / "config.json")


def read_chat_template(folder: Path) -> str:
    """Return it from its own file, as transformers writes it, or the tokenizer's."""
    own = _read(folder / "chat_template.jinja").decode("utf-8", "replace")
    config = {} if own else _read_tree(folder / "tokenizer_config.json") or {}
    return own or str(config.get("chat_template") or "")


def read_characters(folder: Path) -> frozenset[str] | None:
    """Return the characters of a tokenizer that only has single characters and numbers.

    None for other tokenizers, or if this machine cannot read it.
    """
    model = (_read_tree(folder / "tokenizer.json") or {}).get("model")
    if not isinstance(model, dict) or model.get("type") != "WordLevel":
        return None
    words = [str(word) for word in model.get("vocab", ())]
    named = [
        word for word in words if not (word.startswith("<") and word.endswith(">"))
    ]
    if not all(len(word) == 1 or word.isdecimal() for word in named):
        return None
    return frozenset("".join(named))


def _read_tree(file: Path) -> dict[str, Any] | None:
    try:
        tree = json.loads(_read(file))
    except (ValueError, RecursionError):
        return None
    return tree if isinstance(tree, dict) else None


def _read(file: Path) -> bytes:
    """Return nothing of a file that is missing or too large."""
    try:
        with open_inside(file.parent, file.name) as opened:
            data = opened.read(MAX_BYTES + 1)
    except (OSError, ValueError):
        return b""
    return data if len(data) <= MAX_BYTES else b""


def _has_file(folder: Path, name: str) -> bool:
    try:
        open_inside(folder, name).close()
    except (OSError, ValueError):
        return False
    return True


def find_published(path: str) -> PublishedModel | None:
    """Return the published model of this folder."""
    match = DATA_FOLDER.fullmatch(within_data(path))
    if match is None or match["model"] is None:
        return None
    model = PublishedModel.objects.filter(pk=match["model"]).first()
    return model if model and str(model.folder / "model") == path else None


class FolderNotAllowed(UserError):
    """A model folder outside of the data folder; an operator can allow it."""


def versions_of(run: Run) -> Iterator[DatasetVersion]:
    """Yield the versions whose rows it plays."""
    assert run.dataset_version, "launched"
    yield run.dataset_version
    for chosen in run.evaluation_sets.select_related("dataset_version"):
        yield chosen.dataset_version


def lock_published(
    team: Team, config: dict[str, Any], versions: Iterable[DatasetVersion]
) -> None:
    """Lock the run's models against unpublishing until the run is written.

    UserError: a folder belongs to another team, was unpublished, or is not allowed
    (FolderNotAllowed); or the run's taskset, with the rows of `versions`, is not.
    """
    if why := refuse_environment(config.get("environment") or {}, versions):
        raise UserError("runs.bad_taskset", why)
    for path in named_models(config):
        if why := refuse_model(team, path):
            refusal = UserError if within_data(path) else FolderNotAllowed
            raise refusal("runs.bad_model_folder", why)
        match = DATA_FOLDER.fullmatch(within_data(path))
        number = match and match["model"]
        published = team.published_models.select_for_update()
        if number and not published.filter(pk=number).exists():
            raise UserError(
                "runs.unknown_model",
                f"The team has no model in {json.dumps(path)}. Choose a model from "
                "the list, or enter your own model folder.",
            )


def folder_of(model: PublishedModel) -> str:
    """Return the folder as configurations name it."""
    return str(model.folder / "model")


def needs_of(team: Team) -> dict[str, list[Run]]:
    """List folders that the team's runs name and need: none has ended; one query."""
    runs: dict[str, list[Run]] = {}
    for run in Run.objects.filter(team=team).exclude(state__in=ENDED).order_by("id"):
        for path in {*named_models(run.config)}:
            runs.setdefault(path, []).append(run)
    return runs


@dataclass(frozen=True, kw_only=True, slots=True)
class StarterModel:
    """A model folder, optionally with recommended settings."""

    key: str  # the folder's name
    title: str
    folder: Path
    # What it was trained on, as ids of versions; None: unknown, or another team's.
    dataset: int | None = None
    recipe: int | None = None

    @property
    def path(self) -> str:
        return str(self.folder / "model")

    @property
    def has_settings(self) -> bool:
        return (self.folder / "run.toml").is_file()

    def read_settings(self) -> dict[str, Any]:
        """Return the recommended settings, as a tree."""
        return tomllib.loads((self.folder / "run.toml").read_text(encoding="utf-8"))


def offered_models(team: Team) -> list[StarterModel]:
    """List the starters, and what the team has published."""
    published = team.published_models.select_related("run").order_by("-pk")
    return starter_models() + [
        StarterModel(
            key=f"published-{model.pk}",
            title=f"{model} ({model.lineage})",
            folder=model.folder,
            dataset=model.run.dataset_version_id if model.run else None,
            recipe=model.run.recipe_version_id if model.run else None,
        )
        for model in published
    ]


def starter_models() -> list[StarterModel]:
    return [
        StarterModel(key=folder.name, title=title_of(folder.name), folder=folder)
        for folder in sorted((settings.COHORT_DATA / "starter").glob("*/"))
        if _is_complete(folder)
    ]


def _is_complete(folder: Path) -> bool:
    if not (folder / "model" / "config.json").is_file():
        return False
    # starter.json is copied last; a pretrained model appears complete, without other
    # files.
    names = {path.name for path in folder.iterdir()}
    return "starter.json" in names or names == {"model"}


def title_of(key: str) -> str:
    """Return what a starter model is called, by its folder's name."""
    return TITLES.get(key) or key.replace("-", " ").replace("_", " ").capitalize()


def label_model(path: str) -> str:
    """Shorten it for the run list: a starter's title, a folder name or a Hub ID."""
    for starter in starter_models():
        if starter.path == path:
            return starter.title
    if model := find_published(path):
        return f"{model} ({model.lineage})"
    return Path(path).name if _is_folder(path) else path


def check_model(path: str) -> str | None:
    """Return the problem with a typed model, or None."""
    if not path:
        return "Choose a model, or enter a folder or a Hugging Face model ID."
    if not _is_folder(path):
        if HUB_ID.fullmatch(path):
            return None
        return (
            f"“{path}” is neither a folder (starting with /) nor a Hugging Face model "
            "ID such as Qwen/Qwen2.5-0.5B-Instruct."
        )
    # Otherwise the folder may exist only on the workers, which report a missing one.
    if settings.DATABASE_IS_EMBEDDED and not _has_file(Path(path), "config.json"):
        return (
            f"“{path}” is not a model folder: config.json is missing. Enter a folder "
            "that save_pretrained wrote."
        )
    return None


def _is_folder(path: str) -> bool:
    return path.startswith("/")
