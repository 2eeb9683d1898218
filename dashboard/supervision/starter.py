"""Starter content: a small model that Cohort brings, and a first run of it.

The model is copied into COHORT_DATA/starter once; the run is launched once, whether or
not the team has other runs.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from django.conf import settings
from django.db import transaction

from dashboard.accounts.models import AuditEntry, Team, User
from dashboard.datasets.models import Dataset, DatasetVersion
from dashboard.datasets.row import Row
from dashboard.datasets.services import create_dataset_version
from dashboard.project.environment import ROOT
from dashboard.rewards.models import RewardRecipe
from dashboard.rewards.services import save_recipe_version
from dashboard.runs.launch.base_models import title_of
from dashboard.runs.launch.launching import Launch, launch_run
from dashboard.runs.models import Run
from dashboard.runs.queries import ROWS
from trainer.config import RunConfig, load_config
from trainer.rewards.spec import Recipe

NAME = "Countdown starter"
RECIPE_NAME = "Countdown"
RUN_NAME = "first-run"
SHIPPED = ROOT / "trainer" / "starter" / "countdown"
COMPLETE = "starter.json"  # written last


def copy_starter() -> Path:
    """Copy the starter to COHORT_DATA, where runs may take their models from."""
    folder = Path(settings.COHORT_DATA) / "starter" / SHIPPED.name
    if not (folder / COMPLETE).exists():
        shutil.rmtree(folder, ignore_errors=True)  # of a copy that was ended
        shutil.copytree(
            SHIPPED,
            folder,
            ignore=shutil.ignore_patterns(COMPLETE),
            copy_function=shutil.copyfile,
        )
        shutil.copyfile(SHIPPED / COMPLETE, folder / COMPLETE)
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
    recipe = save_recipe_version(
        team=team,
        name=RECIPE_NAME,
        recipe=Recipe.model_validate_json((folder / "recipe.json").read_text()),
        user=user,
        existing=RewardRecipe.objects.filter(team=team, name=RECIPE_NAME).first(),
        description="Created at the first start, with the starter model.",
    )
    launch = Launch(
        name=RUN_NAME,
        config=RunConfig.model_validate(
            {
                **config.model_dump(),
                "model": model.model_dump(),
                "data": data.model_dump(),
            }
        ),
        dataset_version=_dataset_version(team, user, folder),
        recipe_version=recipe,
        model_label=title_of(folder.name),
    )
    return launch_run(launch, team=team, user=user)


def _dataset_version(team: Team, user: User, folder: Path) -> DatasetVersion:
    with (folder / "rows.jsonl").open(encoding="utf-8") as file:
        rows = [
            Row(prompt=row["prompt"], answer=row["answer"], columns=row["columns"])
            for row in map(json.loads, file)
        ]
    columns = sorted(rows[0].columns)
    return create_dataset_version(
        team=team,
        name=NAME,
        rows=rows,
        mapping={"prompt": "prompt", "answer": "answer", "columns": columns},
        source={"kind": "starter", "filename": "rows.jsonl"},
        user=user,
        dataset=Dataset.objects.filter(team=team, name=NAME, trashed_at=None).first(),
    )
