"""Checks of a launch: its rows, its files, and what a fork cannot change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from django.conf import settings
from pydantic import ValidationError

from dashboard.accounts.templatetags.numbers import sig4
from dashboard.datasets.models import DatasetVersion
from dashboard.runs.config.errors import Problems
from dashboard.runs.config.fields import all_fields
from dashboard.runs.config.snapshot import rate_at
from dashboard.runs.launch.initial_values import Start
from dashboard.runs.models import Checkpoint
from trainer.config import RunConfig, leaves, read_about

# Settings that a checkpoint depends on: it is useless to a run with other values.
FIXED = {
    path: reason
    for path, info in leaves(RunConfig)
    if (reason := read_about(info).get("fork"))
}


class SettingValue(NamedTuple):
    """A value that a setting has in the run, and the control that it comes from.

    >>> SettingValue("phases", 'Phase "grpo": ', 64)
    """

    control: str
    where: str  # begins a sentence about it
    value: Any


def values_of(config: RunConfig, path: str) -> Iterator[SettingValue]:
    """The form's own value, unless each phase changes it, and those of such phases."""
    part, name = path.split(".")
    for control, where, value in parts_of(config, part, (name,)):
        yield SettingValue(control, where, getattr(value, name))


def parts_of(
    config: RunConfig, part: str, names: Sequence[str]
) -> Iterator[SettingValue]:
    """The same of a part of the configuration, by its settings with these names."""
    changing = [
        phase
        for given, phase in zip(config.phases, config.phase_configs, strict=False)
        if not given.changes.get(part, {}).keys().isdisjoint(names)
    ]
    if not config.phases or len(changing) < len(config.phases):
        yield SettingValue(f"{part}.{names[0]}", "", getattr(config, part))
    for phase in changing:
        value = getattr(phase.config, part)
        yield SettingValue("phases", f'Phase "{phase.name}": ', value)


def check_rows(config: RunConfig, dataset: DatasetVersion, problems: Problems) -> None:
    num_train = dataset.num_rows - config.data.num_eval_rows
    if num_train < 1:
        problems.add(
            "data.num_eval_rows",
            f"{config.data.num_eval_rows:,} held-out prompts leave no training rows: "
            f"{dataset} has {dataset.num_rows:,} rows. Hold out fewer.",
        )
    for control, where, num_prompts in values_of(config, "rollout.prompts_per_step"):
        if num_prompts > num_train >= 1:
            problems.add(
                control,
                f"{where}A step needs {num_prompts:,} different prompts, but {dataset} "
                f"has {num_train:,} training rows. Lower Prompts per step.",
            )
    _check_column(config, dataset, problems)


def _check_column(
    config: RunConfig, dataset: DatasetVersion, problems: Problems
) -> None:
    """The column is the run's, whichever phase reads it."""
    column = config.data.completion_column
    columns = dataset.mapping.get("columns", [])
    sources = values_of(config, "rollout.source")
    where = next((given.where for given in sources if given.value == "dataset"), None)
    if where is not None and not dataset.has_column(column):
        there = (
            f"Its extra columns are {', '.join(columns)}"
            if columns
            else "It has no extra columns"
        )
        problems.add(
            "data.completion_column",
            f"{where}The completions come from the dataset, but {dataset} has no "
            f"column “{column}”. {there}. Import the rows with this column.",
        )


def check_files(config: RunConfig, team: str, problems: Problems) -> None:
    """A form must not make a worker read, send or show arbitrary files."""
    for part in ("reference", "rollout"):
        for control, where, given in parts_of(config, part, ("token_file", "url")):
            if given.token_file and not _is_server(team, given.token_file, given.url):
                problems.add(
                    control,
                    f"{where}This team has no {part} server at {given.url} with the "
                    f"token file “{given.token_file}”. Have an operator set "
                    "COHORT_SERVER_URL_NAME for the file "
                    f"{settings.COHORT_DATA / 'tokens' / 'NAME'}.",
                )
    for control, where, sets in values_of(config, "evaluation.sets"):
        if not sets.items() <= config.evaluation.sets.items():
            names = ", ".join(config.evaluation.sets) or "none"
            problems.add(
                control,
                f"{where}A phase can only use evaluation sets of the run: "
                f"{names}. Omit evaluation.sets to use all.",
            )


def _is_server(team: str, token_file: str, url: str | None) -> bool:
    folder, _, name = token_file.rpartition("/")
    allowed, teams = settings.SERVERS.get(name, (frozenset(), frozenset()))
    urls = {each.strip().rstrip("/") for each in (url or "").split(",")}
    return (
        folder == str(settings.COHORT_DATA / "tokens")
        and urls <= allowed
        and (not teams or team in teams)
    )


def check_fork(
    start: Start, texts: dict[str, str], model_path: str, problems: Problems
) -> None:
    """Refuse settings that the checkpoint cannot continue with, by control."""
    assert start.run is not None
    path = str(start.run.config["model"]["path"])
    if model_path != path:
        _refuse(problems, "model", "model.path", path)
    for setting in (all_fields()[name] for name in FIXED if name != "model.path"):
        before = start.texts[setting.path]
        if not setting.is_same(texts[setting.path], before):
            _refuse(problems, setting.path, setting.path, setting.show(before))


def _refuse(problems: Problems, control: str, path: str, value: str) -> None:
    problems.add(
        control,
        f"A fork cannot change {path}: {FIXED[path]}. Set it back to {value}, or "
        "launch a new run.",
    )


def check_course(config: RunConfig, start: Start, problems: Problems) -> None:
    """The steps before the checkpoint must stay the same."""
    checkpoint = _checkpoint(start)
    if config.optim.num_steps <= checkpoint.step:
        problems.add(
            "optim.num_steps",
            f"The checkpoint is from step {checkpoint.step:,}, so the run needs more "
            f"steps than that; got {config.optim.num_steps:,}.",
        )
    started, parents = (
        _started_phases(each, checkpoint.step)
        for each in (config, _parents_config(start))
    )
    if parents and started != parents:
        started_at = ", ".join(
            f"{name} from step {first}" for name, first, _ in parents
        )
        problems.add(
            "phases",
            f"Phases that started by step {checkpoint.step:,} must keep their names "
            f"and first steps: {started_at or 'none'}.",
        )


def _started_phases(config: RunConfig | None, step: int) -> list[tuple[str, int, bool]]:
    """Phases by first step; the frozen start of a later one is in the checkpoint."""
    if config is None:
        return []
    phases = [phase for phase in config.phase_configs if phase.first_step <= step]
    return [
        (
            phase.name,
            phase.first_step,
            phase.goes_on and phase.config.rollout.source == "start",
        )
        for phase in phases
    ]


def _parents_config(start: Start) -> RunConfig | None:
    """None if an older release wrote it; then only the form's config is known."""
    assert start.run is not None
    try:
        return RunConfig.model_validate(start.run.config)
    except ValidationError:
        return None


def describe_fork(
    config: RunConfig, dataset: DatasetVersion, start: Start
) -> Iterator[str]:
    """Notes on continuing from a checkpoint."""
    checkpoint, parents = _checkpoint(start), _parents_config(start)
    assert start.run is not None
    first, last = checkpoint.step + 1, config.optim.num_steps
    steps = f"steps {first:,} to {last:,}" if last > first else f"step {first:,}"
    yield f"The fork trains {steps}."
    rate = rate_at(config, first)
    before = None if parents is None else rate_at(parents, first)
    if rate is not None and before is not None and rate != before:
        yield (
            f"The learning rate at step {first:,} is {sig4(rate)}; in "
            f"{start.run.name} it was {sig4(before)}. The schedule covers all "
            f"{last:,} steps, including those of {start.run.name}."
        )
    data = config.data.num_eval_rows, config.seed
    if dataset.pk != start.run.dataset_version_id:
        yield (
            f"Step {first:,} uses the same rows as step {first:,} of any run on "
            f"{dataset} with this seed. Cohort draws new held-out rows."
        )
    elif parents and data != (parents.data.num_eval_rows, parents.seed):
        yield (
            "Cohort draws new held-out prompts. The model trained on some of them "
            f"before step {first:,}."
        )


def _checkpoint(start: Start) -> Checkpoint:
    assert start.fork is not None, "no fork"
    return start.fork
