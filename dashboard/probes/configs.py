"""The settings of a probe, where nobody has filled in a launch form."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from dashboard.datasets.models import DatasetVersion
from dashboard.runs.config.fields import all_fields, put, write_texts
from dashboard.runs.launch.base_models import StarterModel
from dashboard.runs.launch.checks import fit_to_rows
from dashboard.runs.models import Checkpoint
from dashboard.runs.queries import ROWS
from trainer.config import RunConfig
from trainer.rewards.spec import Recipe


def config_of_model(
    path: str,
    recipe: Recipe,
    *,
    version: DatasetVersion,
    starters: list[StarterModel],
    rollout: dict[str, Any],
) -> RunConfig:
    """The settings that a starter was made for, or Cohort's, with a few of one's own.

    What depends on the rows is made to fit the version's, as a launch form does.

    Raises:
        ValueError: they do not go together; a sentence for each.
    """
    starter = next((each for each in starters if each.path == path), None)
    tree = starter.read_settings() if starter and starter.has_settings else {}
    tree["model"] = {**tree.get("model", {}), "path": path}
    for setting, text in fit_to_rows(write_texts(tree), version, path).texts.items():
        put(tree, setting, all_fields()[setting].read(text))
    tree["data"] = {**tree.get("data", {}), "rows": ROWS}
    tree["reward"] = {
        **tree.get("reward", {}),
        "recipe": recipe.model_dump(mode="json"),
    }
    given = {name: value for name, value in rollout.items() if value is not None}
    tree["rollout"] = {**tree.get("rollout", {}), **given}
    return _checked(tree)


def config_of_checkpoint(
    checkpoint: Checkpoint, recipe: Recipe | None, *, seed: int, rollout: dict[str, Any]
) -> RunConfig:
    """What its phase samples and scores with; only what a step does is left out.

    Raises:
        ValueError: they do not go together; a sentence for each.
    """
    own = settings_at(checkpoint)
    sampling = own.rollout.model_dump(
        include={"top_p", "top_k", "max_batch_rows", "decoding"}
    )
    recipe = recipe or own.reward.recipe
    scoring = {"recipe": recipe, "num_workers": own.reward.num_workers}
    return _checked(
        {
            "seed": seed,
            "model": own.model,
            "data": {**own.data.model_dump(), "num_eval_rows": 0},
            "rollout": {**sampling, **rollout},
            "reward": scoring,
            "distributed": {"num_threads": own.distributed.num_threads},
        }
    )


def settings_at(checkpoint: Checkpoint) -> RunConfig:
    """The run's in the phase that the checkpoint was saved in."""
    return RunConfig.model_validate(checkpoint.run.config).config_at(checkpoint.step)


def _checked(tree: dict[str, Any]) -> RunConfig:
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        sentences = [
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
            for fault in error.errors()
        ]
        raise ValueError(" ".join(sentences)) from None
