"""What the engine would refuse only once a worker is busy with the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from django.conf import settings

from dashboard.datasets.models import DatasetVersion
from dashboard.runs.config_errors import Problems
from trainer.config import RunConfig


def check_rows(config: RunConfig, dataset: DatasetVersion, problems: Problems) -> None:
    num_train = dataset.num_rows - config.data.num_eval_rows
    num_prompts = max(s.config.rollout.prompts_per_step for s in config.stages)
    if num_train < 1:
        problems.add(
            "data.num_eval_rows",
            f"{config.data.num_eval_rows:,} held-out prompts leave none of the "
            f"{dataset.num_rows:,} rows of {dataset} to train on. Hold out fewer.",
        )
    elif num_prompts > num_train:
        problems.add(
            "rollout.prompts_per_step",
            f"A step takes {num_prompts:,} distinct prompts, but {num_train:,} rows of "
            f"{dataset} are left to train on. Take fewer.",
        )
    _check_column(config, dataset, problems)


def _check_column(
    config: RunConfig, dataset: DatasetVersion, problems: Problems
) -> None:
    column = config.data.completion_column
    columns = dataset.mapping.get("columns", [])
    learns = any(s.config.rollout.source == "dataset" for s in config.stages)
    if learns and column not in columns:
        there = f"It has {', '.join(columns)}" if columns else "It has none"
        problems.add(
            "data.completion_column",
            f"The completions come from the dataset, but {dataset} has no column "
            f"“{column}”. {there}. Upload the rows with that column kept.",
        )


def tokens_folder() -> Path:
    return Path(settings.COHORT_DATA) / "tokens"


def check_files(
    config: RunConfig, eval_sets: Mapping[str, str], problems: Problems
) -> None:
    """A form must not make a worker read, and send or show, any file it likes."""
    for stage in config.stages:
        control = "phases" if stage.name else "reference.token_file"
        token_file = stage.config.reference.token_file
        if token_file and not _is_token(token_file):
            problems.add(
                control,
                f"A token for a reference server is a file in {tokens_folder()}; got "
                f"“{token_file}”. Put it there.",
            )
        if stage.config.evaluation.sets != eval_sets:
            problems.add(
                "phases",
                "Further held-out sets are files of the training worker, which a form "
                "cannot name. Leave evaluation.sets out.",
            )


def _is_token(path: str) -> bool:
    file = Path(path)
    return file.parent == tokens_folder() and ".." not in file.parts
