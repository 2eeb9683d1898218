"""Rows that launch and list tests start from."""

from typing import Any

from dashboard.accounts.models import Team, User
from dashboard.datasets.models import Dataset, DatasetRow, DatasetVersion
from dashboard.rewards.models import RecipeVersion, RewardRecipe
from dashboard.runs.models import MetricSummary, Run, RunState
from trainer.config import RunConfig

NUMERIC = {"rules": [{"name": "answer", "kind": "numeric_answer", "params": {}}]}
COUNTDOWN = {"rules": [{"name": "equation", "kind": "countdown", "params": {}}]}


def make_dataset(
    team: Team, name: str = "sums", *, num_rows: int = 200, **columns: Any
) -> DatasetVersion:
    dataset = Dataset.objects.create(team=team, name=name)
    version = DatasetVersion.objects.create(
        dataset=dataset,
        number=1,
        content_sha256="0" * 64,
        num_rows=num_rows,
        mapping={"prompt": "prompt", "answer": "answer", "columns": list(columns)},
    )
    DatasetRow.objects.bulk_create(
        DatasetRow(
            version=version,
            position=position,
            prompt=f"{position}+1=",
            answer=str(position + 1),
            columns=columns,
        )
        for position in range(5)
    )
    return version


def make_recipe(
    team: Team, name: str = "right answer", spec: dict[str, Any] = NUMERIC
) -> RecipeVersion:
    recipe = RewardRecipe.objects.create(team=team, name=name)
    return RecipeVersion.objects.create(
        recipe=recipe, number=1, content_sha256="0" * 64, spec=spec
    )


def make_config(**parts: Any) -> dict[str, Any]:
    tree = {
        "model": {"path": "org/model"},
        "data": {"rows": "rows.jsonl"},
        "reward": {"recipe": NUMERIC},
        **parts,
    }
    return RunConfig.model_validate(tree).model_dump(mode="json")


def make_run(
    team: Team,
    name: str,
    *,
    dataset: DatasetVersion,
    recipe: RecipeVersion,
    owner: User | None = None,
    state: RunState = RunState.QUEUED,
    **fields: Any,
) -> Run:
    config = fields.pop("config", None) or make_config()
    return Run.objects.create(
        team=team,
        name=name,
        owner=owner,
        state=state,
        config=config,
        dataset_version=dataset,
        recipe_version=recipe,
        num_steps=config["optim"]["num_steps"],
        model_label=fields.pop("model_label", "model"),
        **fields,
    )


def summarize(run: Run, name: str, **values: float) -> MetricSummary:
    """As ingest leaves it: last, low, high, their steps, total and num."""
    last = values.get("last", 0.0)
    usual = {"low": last, "high": last, "total": last, "num": 1}
    steps = {"last_step": 1, "low_step": 1, "high_step": 1}
    given = usual | steps | {"last": last} | values
    return MetricSummary.objects.create(run=run, name=name, **given)
