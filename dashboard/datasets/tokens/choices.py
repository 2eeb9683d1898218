"""Models whose tokenizer a team may count with, and those that it may not."""

from __future__ import annotations

import re
from pathlib import Path

from django.conf import settings

from dashboard.accounts.models import Team
from trainer.config import HUB_ID

OF_A_TEAM = re.compile(r"(models|runs)/(\d{1,18})(?:/.*)?")


def list_models(team: Team) -> list[str]:
    """The newest run's, folders of the starter models, what other runs have used."""
    starters = sorted((Path(settings.COHORT_DATA) / "starter").glob("*/model"))
    paths = [str(path) for path in starters if (path / "tokenizer.json").is_file()]
    # Runs are of a higher rung, and named by string only.
    runs = (
        team.runs.filter(origin={})
        .order_by("-pk")
        .values_list("config__model__path", flat=True)
    )
    used = list(runs[:200])
    return list(dict.fromkeys([*used[:1], *paths, *used[1:]]))[:20]


def refuse_model(team: Team, model: str) -> str:
    """Why its tokenizer is not looked at; "" where it may be."""
    if not model.startswith("/"):
        # Relative, it would lead from the engine's folder to another one's.
        return "" if HUB_ID.fullmatch(model) else _no_model(model)
    found = OF_A_TEAM.fullmatch(within_data(model))
    if found is None:
        return refuse_folder(model)
    kind, number = found[1], int(found[2])
    is_own = (
        number == team.pk if kind == "models" else team.runs.filter(pk=number).exists()
    )
    return "" if is_own else _no_model(model)


def _no_model(model: str) -> str:
    return (
        f"This team has no model in {model[:200]!r}. Give a folder, which starts with "
        "/, or a hub id such as Qwen/Qwen2.5-0.5B-Instruct."
    )


def refuse_folder(path: str) -> str:
    """Why a model in this folder may not be read; "" where it may be."""
    allowed = [*settings.MODEL_FOLDERS, Path(settings.COHORT_DATA).resolve()]
    if not settings.MODEL_FOLDERS or any(map(_resolved(path).is_relative_to, allowed)):
        return ""
    return (
        f"Models may not lie in {path[:200]!r}. Name a folder in one of "
        f"{', '.join(map(str, settings.MODEL_FOLDERS))}, or let the operator add yours "
        "to COHORT_MODEL_FOLDERS."
    )


def _resolved(path: str) -> Path:
    """Whatever detour it takes; / where there can be no such path."""
    try:
        return Path(path).resolve()
    except (ValueError, OSError, RuntimeError):
        return Path("/")


def within_data(path: str) -> str:
    """Where in COHORT_DATA it lies, whatever detour it takes; "" where it does not."""
    if not path.startswith("/") or "\0" in path:
        return ""
    try:
        data = Path(settings.COHORT_DATA).resolve()
        return str(Path(path).resolve().relative_to(data))
    except (ValueError, OSError, RuntimeError):
        return ""
