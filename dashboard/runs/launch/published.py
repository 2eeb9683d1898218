"""Models of a team that new runs start from, and whose they are."""

from __future__ import annotations

import json
import re
from typing import Any

from dashboard.accounts.models import Team
from dashboard.datasets.token_preview import refuse_folder, within_data
from dashboard.runs.models import ENDED, PublishedModel, Run
from trainer.config import HUB_ID, named_models

FOLDER = re.compile(r"models/\d+/(\d{1,18})/model")
OF_A_RUN = re.compile(r"runs/(\d{1,18})(/.*)?")


def published_at(path: str) -> PublishedModel | None:
    """The model whose folder this is."""
    match = FOLDER.fullmatch(within_data(path))
    if match is None:
        return None
    model = PublishedModel.objects.filter(pk=int(match[1])).first()
    return model if model and str(model.folder / "model") == path else None


def hold_published(team: Team, config: dict[str, Any]) -> None:
    """Before a run is written: whoever unpublishes its models waits, and then sees it.

    ValueError: a folder of the configuration is another team's, or was unpublished.
    """
    for path in named_models(config):
        # relative, it would lead from the run's folder to another one's
        if not path.startswith("/") and HUB_ID.fullmatch(path) is None:
            raise ValueError(_unknown(path))
    for path in _paths(config):
        within = within_data(path)
        if match := OF_A_RUN.fullmatch(within):
            if not Run.objects.kept().filter(team=team, pk=int(match[1])).exists():
                raise ValueError(_unknown(path))
        elif within.startswith("models/"):
            found = FOLDER.fullmatch(within)
            held = PublishedModel.objects.select_for_update().filter(team=team)
            if not found or not held.filter(pk=int(found[1])).exists():
                raise ValueError(_unknown(path))
    for path in named_models(config):
        if path.startswith("/") and (why := refuse_folder(path)):
            raise ValueError(why)


def runs_that_need(model: PublishedModel) -> list[Run]:
    """Those that have not ended and name its folder."""
    return needs_of(model.team).get(folder_of(model), [])


def folder_of(model: PublishedModel) -> str:
    """As configurations name it."""
    return str(model.folder / "model")


def needs_of(team: Team) -> dict[str, list[Run]]:
    """The folders that the team's runs name, while they have not ended; one query."""
    found: dict[str, list[Run]] = {}
    waiting = Run.objects.filter(team=team).exclude(state__in=ENDED)
    for run in waiting.order_by("id"):
        for path in _paths(run.config):
            found.setdefault(path, []).append(run)
    return found


def _paths(tree: Any) -> set[str]:
    """Every text of a configuration that is a folder's address."""
    if isinstance(tree, dict):
        return set().union(*map(_paths, tree.values()))
    if isinstance(tree, list):
        return set().union(*map(_paths, tree))
    return {tree} if isinstance(tree, str) and tree.startswith("/") else set()


def _unknown(path: str) -> str:
    return (
        f"This team has no model in {json.dumps(path)}. Choose one of the form's "
        "models, or give a folder of your own."
    )
