"""Starter content: small models that Cohort brings, and a first run of one.

The models are copied into COHORT_DATA/starter once; the run is launched once, whether
or not the team has other runs. Rows and reward of the game come when they are asked
for.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction

from dashboard.accounts.models import AuditEntry, Team, User
from dashboard.datasets.models import Dataset, DatasetVersion
from dashboard.datasets.row import Row
from dashboard.datasets.services import create_dataset_version
from dashboard.project.environment import ROOT
from dashboard.rewards.models import RecipeVersion, RewardRecipe
from dashboard.rewards.services import save_recipe_version
from dashboard.runs.launch.base_models import StarterModel, title_of
from dashboard.runs.launch.draft import choices_of
from dashboard.runs.launch.launching import Launch, launch_run
from dashboard.runs.models import Run
from dashboard.runs.queries import ROWS
from trainer.config import RunConfig, load_config
from trainer.rewards.spec import Recipe

NAME = "Countdown starter"
RECIPE_NAME = "Countdown"
RUN_NAME = "first-run"
SHIPPED = ROOT / "trainer" / "starter"
GAME = "guess"
GAME_NAME, GAME_RECIPE_NAME = "Guess starter", "Guess"
NAMES = {"countdown": NAME, GAME: GAME_NAME, "rlox": "rlox toy", "arithmetic": "Sums"}
COMPLETE = "starter.json"  # written last


def copy_starter(key: str = "countdown") -> Path:
    """Copy a starter to COHORT_DATA, where runs may take their models from."""
    folder = Path(settings.COHORT_DATA) / "starter" / key
    if not (folder / COMPLETE).exists():
        shutil.rmtree(folder, ignore_errors=True)  # of a copy that was ended
        shutil.copytree(
            SHIPPED / key,
            folder,
            ignore=shutil.ignore_patterns(COMPLETE),
            copy_function=shutil.copyfile,
        )
        shutil.copyfile(SHIPPED / key / COMPLETE, folder / COMPLETE)
    return folder


@transaction.atomic
def launch_starter_run(*, team: Team, user: User, folder: Path) -> Run | None:
    """Launch the first run; None if the team has had it, even if it was deleted."""
    # Two starts at once must not launch two.
    Team.objects.select_for_update().get(pk=team.pk)
    if AuditEntry.objects.filter(
        team=team, verb="dataset.version_created", detail__dataset=NAME
    ).exists():
        return None
    config = load_config(folder / "run.toml")
    model = config.model.model_copy(update={"path": str(folder / "model")})
    data = config.data.model_copy(update={"rows": ROWS})
    launch = Launch(
        name=RUN_NAME,
        config=RunConfig.model_validate(
            {
                **config.model_dump(),
                "model": model.model_dump(),
                "data": data.model_dump(),
            }
        ),
        dataset_version=_dataset_version(team, user, folder, NAME),
        recipe_version=_recipe_version(team, user, folder, RECIPE_NAME),
        model_label=title_of(folder.name),
    )
    return launch_run(launch, team=team, user=user)


@transaction.atomic
def prepare_game(team: Team, user: User) -> dict[str, str]:
    """Return model, dataset and reward of the game, which the team may have already."""
    # Two clicks at once must not make two.
    Team.objects.select_for_update().get(pk=team.pk)
    folder = copy_starter(GAME)
    model = StarterModel(key=GAME, title=title_of(GAME), folder=folder)
    own = choices_of(team)
    version = own.own_dataset(model) or _dataset_version(team, user, folder, GAME_NAME)
    recipe = own.own_recipe(model) or _recipe_version(
        team, user, folder, GAME_RECIPE_NAME
    )
    chosen = {"dataset": version.pk, "recipe": recipe.pk}
    return {"model": model.path} | {name: str(pk) for name, pk in chosen.items()}


def prepare_rows(team: Team, user: User, key: str) -> DatasetVersion:
    """Copy a starter's files, and make its rows a dataset of the team."""
    return _dataset_version(team, user, copy_starter(key), NAMES[key])


def _recipe_version(team: Team, user: User, folder: Path, name: str) -> RecipeVersion:
    return save_recipe_version(
        team=team,
        name=name,
        recipe=Recipe.model_validate_json((folder / "recipe.json").read_text()),
        user=user,
        existing=RewardRecipe.objects.filter(team=team, name=name).first(),
        description="Created with the starter model.",
    )


def _dataset_version(team: Team, user: User, folder: Path, name: str) -> DatasetVersion:
    with (folder / "rows.jsonl").open(encoding="utf-8") as file:
        rows = [
            Row(prompt=row["prompt"], answer=row["answer"], columns=row["columns"])
            for row in map(json.loads, file)
        ]
    columns = sorted(rows[0].columns)
    return create_dataset_version(
        team=team,
        name=name,
        rows=rows,
        mapping={"prompt": "prompt", "answer": "answer", "columns": columns},
        source={"kind": "starter", "filename": "rows.jsonl"}
        | ({} if name == NAME else {"starter": folder.name}),
        user=user,
        dataset=Dataset.objects.filter(team=team, name=name, trashed_at=None).first(),
        environment=_environment(folder / "run.toml"),
    )


def _environment(run: Path) -> Any:
    return tomllib.loads(run.read_text()).get("environment") if run.exists() else None
