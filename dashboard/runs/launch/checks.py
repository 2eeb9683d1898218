"""What the engine would refuse only once a worker is busy with the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings

from dashboard.datasets.models import DatasetVersion
from dashboard.runs.config.errors import Problems
from dashboard.runs.config.snapshot import toml_value
from trainer.config import RunConfig


class Given(NamedTuple):
    """A value that a setting has in the run, and where it was put.

    >>> Given("phases", 'Phase "grpo": ', 64)
    """

    control: str
    where: str  # begins a sentence about it
    value: Any


def values_of(config: RunConfig, path: str) -> Iterator[Given]:
    """The form's own value, unless each phase changes it, and those of such phases."""
    part, name = path.split(".")
    changing = [
        stage
        for phase, stage in zip(config.phases, config.stages, strict=False)
        if name in phase.changes.get(part, {})
    ]
    if not config.phases or len(changing) < len(config.phases):
        yield Given(path, "", getattr(getattr(config, part), name))
    for stage in changing:
        value = getattr(getattr(stage.config, part), name)
        yield Given("phases", f'Phase "{stage.name}": ', value)


def check_rows(config: RunConfig, dataset: DatasetVersion, problems: Problems) -> None:
    num_train = dataset.num_rows - config.data.num_eval_rows
    if num_train < 1:
        problems.add(
            "data.num_eval_rows",
            f"{config.data.num_eval_rows:,} held-out prompts leave none of the "
            f"{dataset.num_rows:,} rows of {dataset} to train on. Hold out fewer.",
        )
    else:
        _check_prompts(config, dataset, num_train, problems)
    _check_column(config, dataset, problems)


def _check_prompts(
    config: RunConfig, dataset: DatasetVersion, num_train: int, problems: Problems
) -> None:
    for control, where, num_prompts in values_of(config, "rollout.prompts_per_step"):
        if num_prompts > num_train:
            problems.add(
                control,
                f"{where}A step takes {num_prompts:,} distinct prompts, but "
                f"{num_train:,} rows of {dataset} are left to train on. Take fewer.",
            )


def _check_column(
    config: RunConfig, dataset: DatasetVersion, problems: Problems
) -> None:
    """The column is the run's, whichever phase reads it."""
    column = config.data.completion_column
    columns = dataset.mapping.get("columns", [])
    sources = values_of(config, "rollout.source")
    where = next((given.where for given in sources if given.value == "dataset"), None)
    if where is not None and column not in columns:
        there = f"It has {', '.join(columns)}" if columns else "It has none"
        problems.add(
            "data.completion_column",
            f"{where}The completions come from the dataset, but {dataset} has no "
            f"column “{column}”. {there}. Upload the rows with that column kept.",
        )


def tokens_folder() -> Path:
    return Path(settings.COHORT_DATA) / "tokens"


def check_files(config: RunConfig, problems: Problems) -> None:
    """A form must not make a worker read, and send or show, any file it likes."""
    for part in ("reference", "rollout"):
        for control, where, token_file in values_of(config, f"{part}.token_file"):
            if token_file and not _is_token(token_file):
                problems.add(
                    control,
                    f"{where}A token for a {part} server is a file in "
                    f"{tokens_folder()}; got “{token_file}”. Put it there.",
                )
    for control, where, sets in values_of(config, "evaluation.sets"):
        if not sets.items() <= config.evaluation.sets.items():
            there = toml_value(config.evaluation.sets)
            problems.add(
                control,
                f"{where}Held-out sets are chosen above, not by their files: a phase "
                f"can leave some out of {there}. Leave evaluation.sets out for all.",
            )


def _is_token(path: str) -> bool:
    file = Path(path)
    return file.parent == tokens_folder() and ".." not in file.parts
