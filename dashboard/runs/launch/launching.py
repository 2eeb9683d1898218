"""Turns a draft into a launch, and a launch into a queued run or sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.conf import settings
from django.db import transaction
from pydantic import ValidationError

from cohort.lines import IMAGE
from dashboard.accounts.members import check_runs
from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.accounts.templatetags.numbers import sig3
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.tokenizer_pool import refuse_environment
from dashboard.datasets.trash import lock_untrashed
from dashboard.project.errors import UserError
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.charts.series import carried_to, totals_of
from dashboard.runs.checkpoints.listing import add_fork_point, fork_draft
from dashboard.runs.config.fields import Problems, all_fields, find_problems
from dashboard.runs.config.snapshot import rate_at
from dashboard.runs.config.toml import refuse_unstorable
from dashboard.runs.launch.base_models import label_model, lock_published
from dashboard.runs.launch.draft import LaunchDraft
from dashboard.runs.launch.eval_sets import ChosenSet, choose_sets
from dashboard.runs.launch.starts import Start, clean_name
from dashboard.runs.models import Checkpoint, EvaluationSet, Run, Sweep
from dashboard.runs.queries import (
    eval_rows,
    find_pass_rates,
    pass_rates_file,
    run_directory,
)
from dashboard.runs.state import notify_workers
from trainer.config import RunConfig, leaves, read_about

ROWS_LOOKED_AT = 1_000  # for images; the trainer looks at all
LONGEST_NAME = Run._meta.get_field("name").max_length or 80
# Settings that a checkpoint depends on: it is useless to a run with other values.
FIXED = {
    path: reason
    for path, info in leaves(RunConfig)
    if (reason := read_about(info).get("fork"))
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A valid launch."""

    name: str
    config: RunConfig
    dataset_version: DatasetVersion
    recipe_version: RecipeVersion
    model_label: str
    evaluation_sets: Sequence[ChosenSet] = ()


def check_draft(draft: LaunchDraft) -> Launch | None:
    """Turn a draft into a launch; None if it has problems, which it keeps."""
    dataset, recipe = draft.dataset_version, draft.recipe_version
    sets = choose_sets(draft.eval_sets, taken=draft.eval_files)
    tree = draft.tree(sets)
    unreadable = draft.put_phases(tree)
    draft.problems = find_problems(tree)
    if unreadable:
        draft.problems.add("phases", unreadable)
    _check_choices(draft)
    if draft.start.fork is not None:
        check_fork(draft.start, draft.texts, draft.model_path, draft.problems)
    if dataset and not draft.problems:
        config = RunConfig.model_validate(tree)
        if draft.start.fork is not None:
            check_course(config, draft.start, draft.problems)
        check_rows(config, dataset, draft.problems)
        _check_teacher(draft, config)
        versions = [dataset, *(chosen.version for chosen in sets)]
        if why := refuse_environment(config.environment.model_dump(), versions):
            draft.problems.add("environment.taskset", why)
        check_files(config, draft.choices.team, draft.problems)
        check_pass_rates(config, dataset, draft.problems)
    if draft.problems or dataset is None or recipe is None:
        return None
    return Launch(
        name=draft.name,
        config=config,
        dataset_version=dataset,
        recipe_version=recipe,
        model_label=label_model(draft.model_path),
        evaluation_sets=sets,
    )


def _check_teacher(draft: LaunchDraft, config: RunConfig) -> None:
    for control, where, path in values_of(config, "reference.model"):
        if path is not None and (sentence := draft.choices.check_model(path)):
            draft.problems.add(control, where + sentence)
    if any(phase.config.lacks_teacher for phase in config.phase_configs):
        draft.problems.add(
            "reference.model",
            "With an advantage weight of 0 the run learns from a teacher alone. "
            "Choose one.",
        )


def _check_choices(draft: LaunchDraft) -> None:
    problems = draft.problems
    try:
        clean_name(draft.name, of="run", longest=LONGEST_NAME)
    except UserError as error:
        problems.add("name", str(error))
    for control, text in {
        "model_other": draft.model_path,
        "phases": draft.phases,
        **draft.texts,
    }.items():
        if "\x00" in text:  # PostgreSQL cannot store it
            problems.add(control, "The text contains a NUL character. Remove it.")
    for path, field in all_fields().items():
        if field.kind in ("json", "object"):
            try:
                value = field.read_or_text(draft.texts[path])
                refuse_unstorable(value, what=field.title)
            except UserError as error:
                problems.add(path, str(error))
    if sentence := draft.choices.check_model(draft.model_path):
        problems.add("model" if draft.model else "model_other", sentence)
    if draft.dataset_version is None:
        problems.add("dataset", "Choose a dataset. The run trains on its prompts.")
    if draft.recipe_version is None:
        problems.by_field["recipe"] = ["Choose a reward. It scores the completions."]
    for row in draft.eval_sets:
        for part, sentences in row.errors.items():
            problems.by_field[f"eval-{row.number}-{part}"] = sentences


class SettingValue(NamedTuple):
    """A value that a setting has in the run, and the control that it comes from.

    >>> SettingValue("phases", 'Phase "grpo": ', 64)
    """

    control: str
    where: str  # begins a sentence about it
    value: Any


def values_of(config: RunConfig, path: str) -> Iterator[SettingValue]:
    """List the form's own value, unless each phase changes it, and those of phases."""
    part, name = path.split(".")
    for control, where, value in parts_of(config, part, (name,)):
        yield SettingValue(control, where, getattr(value, name))


def parts_of(
    config: RunConfig, part: str, names: Sequence[str]
) -> Iterator[SettingValue]:
    """List a part of the configuration likewise, by its settings with these names."""
    changing = [
        phase
        for stated, phase in zip(config.phases, config.phase_configs, strict=False)
        if not stated.changes.get(part, {}).keys().isdisjoint(names)
    ]
    if not config.phases or len(changing) < len(config.phases):
        yield SettingValue(f"{part}.{names[0]}", "", getattr(config, part))
    for phase in changing:
        yield SettingValue(
            "phases", f'Phase "{phase.name}": ', getattr(phase.config, part)
        )


def check_rows(config: RunConfig, dataset: DatasetVersion, problems: Problems) -> None:
    num_train = dataset.num_rows - config.data.num_eval_rows
    if num_train < 1:
        problems.add(
            "data.num_eval_rows",
            f"{config.data.num_eval_rows:,} held-out prompts leave no training rows: "
            f"{dataset} has {dataset.num_rows:,} rows. Hold out fewer.",
        )
    first_rows = dataset.rows.filter(position__lt=ROWS_LOOKED_AT)
    if first_rows.filter(prompt__contains=IMAGE).exists():
        problems.add("dataset", f"{dataset} has images; Cohort trains on texts only.")
    for control, where, num_prompts in values_of(config, "rollout.prompts_per_step"):
        if num_prompts > num_train >= 1:
            problems.add(
                control,
                f"{where}A step needs {num_prompts:,} different prompts, but {dataset} "
                f"has {num_train:,} training rows. Lower Prompts per step.",
            )
    _check_columns(config, dataset, problems)


def _check_columns(
    config: RunConfig, dataset: DatasetVersion, problems: Problems
) -> None:
    """Check the columns of completions and contexts, whichever phase reads them."""
    column = config.data.completion_column
    columns = dataset.mapping.get("columns", [])
    there = (
        f"Its extra columns are {', '.join(columns)}"
        if columns
        else "It has no extra columns"
    )
    names = ("context_column", "context")
    for control, at, reference in parts_of(config, "reference", names):
        name = reference.context_column
        is_read = reference.context == "column" and name != "answer"
        if is_read and not dataset.has_column(name):
            problems.add(
                control,
                f"{at}{dataset} has no column “{name}”. {there}. Name one of them, "
                "or answer.",
            )
    sources = values_of(config, "rollout.source")
    where = next(
        (source.where for source in sources if source.value == "dataset"), None
    )
    if where is not None and not dataset.has_column(column):
        problems.add(
            "data.completion_column",
            f"{where}The completions come from the dataset, but {dataset} has no "
            f"column “{column}”. {there}. Import the rows with this column.",
        )


def check_files(config: RunConfig, team: str, problems: Problems) -> None:
    """Refuse to let a worker read, send or show arbitrary files."""
    for part in ("reference", "rollout"):
        for control, where, server in parts_of(config, part, ("token_file", "url")):
            if server.token_file and not _is_server(
                team, server.token_file, server.url
            ):
                problems.add(
                    control,
                    f"{where}This team has no {part} server at {server.url} with the "
                    f"token file “{server.token_file}”. Have an operator set "
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


def check_pass_rates(
    config: RunConfig, dataset: DatasetVersion, problems: Problems
) -> None:
    """Refuse files that Cohort does not write itself, and those about other rows."""
    name = config.curriculum.start_from
    if name is None:
        return
    source = find_pass_rates(name, team_id=dataset.dataset.team_id)
    if source is None or source.dataset_version_id != dataset.pk:
        problems.add(
            "curriculum.start_from",
            f"“{name[:60]}” is no file of pass rates on {dataset}. Enter "
            f"{pass_rates_file(0).replace('0', 'N')}, with the number N of one of the "
            "team's runs on this dataset version.",
        )


def _is_server(team: str, token_file: str, url: str | None) -> bool:
    folder, _, name = token_file.rpartition("/")
    allowed, teams = settings.SERVERS.get(name, (frozenset(), frozenset()))
    urls = {part.strip().rstrip("/") for part in (url or "").split(",")}
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
    """Check that the steps before the checkpoint stay the same."""
    checkpoint = _checkpoint(start)
    if config.optim.num_steps <= checkpoint.step:
        problems.add(
            "optim.num_steps",
            f"The checkpoint is from step {checkpoint.step:,}, so the run needs more "
            f"steps than that; got {config.optim.num_steps:,}.",
        )
    started, parents = (
        _started_phases(of_run, checkpoint.step)
        for of_run in (config, _parents_config(start))
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
    """Return None if an older release wrote it: only the form's config is known."""
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
            f"The learning rate at step {first:,} is {sig3(rate)}; in "
            f"{start.run.name} it was {sig3(before)}. The schedule covers all "
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


def launch_run(
    launch: Launch,
    *,
    team: Team,
    user: User | None,
    cloned_from: Run | None = None,
    fork_of: Checkpoint | None = None,
    sweep: Sweep | None = None,
) -> Run:
    """Queue a run. The worker that first claims it writes its directory.

    A fork has the files of its checkpoint before any worker can claim it. ValueError:
    these files were deleted, a dataset is in the trash, a model was unpublished, or the
    team's quota is used up.
    """
    if fork_of is None:
        return _queue(launch, team, user, sweep=sweep, cloned_from=cloned_from)
    with fork_draft(fork_of) as files, transaction.atomic():
        run = _queue(launch, team, user, sweep=sweep, fork_of=fork_of)
        if files is not None:
            files.rename(run_directory(run.id).path)
    return run


@transaction.atomic
def rehearse_launch(
    launch: Launch, *, team: Team, user: User | None, fork_of: Checkpoint | None
) -> None:
    """Raise what `launch_run` would. Queue nothing, and leave no files."""
    with fork_draft(fork_of) if fork_of else nullcontext():
        _queue(launch, team, user, sweep=None, fork_of=fork_of)
    transaction.set_rollback(True)


@transaction.atomic
def launch_sweep(
    *,
    team: Team,
    user: User | None,
    name: str,
    launches: Sequence[Launch],
    cloned_from: Run | None = None,
    fork_of: Checkpoint | None = None,
) -> Sweep:
    """Queue all of them, or none. ValueError as for a single run."""
    sweep = Sweep.objects.create(team=team, name=name, launched_by=user)
    for launch in launches:
        launch_run(
            launch,
            team=team,
            user=user,
            cloned_from=cloned_from,
            fork_of=fork_of,
            sweep=sweep,
        )
    record(team, user, "sweep.launched", sweep, name=name, num_runs=len(launches))
    return sweep


@transaction.atomic
def _queue(
    launch: Launch,
    team: Team,
    user: User | None,
    *,
    sweep: Sweep | None,
    cloned_from: Run | None = None,
    fork_of: Checkpoint | None = None,
) -> Run:
    assert cloned_from is None or cloned_from.team_id == team.id, "another team's run"
    assert fork_of is None or fork_of.run.team_id == team.id, "another team's run"
    check_runs(team)
    _lock(launch, team)
    if fork_of is not None:
        # Locked against the trash until the fork is queued.
        parent = Run.objects.select_for_update(of=("self",), no_key=True).get(
            pk=fork_of.run_id
        )
        if parent.trashed_at is not None:
            raise UserError(
                "runs.parent_in_trash",
                f"{parent.name} is in the trash. Restore it, or fork another run.",
            )
    run = Run.objects.create(
        team=team,
        owner=user,
        name=launch.name,
        config=launch.config.model_dump(mode="json"),
        dataset_version=launch.dataset_version,
        recipe_version=launch.recipe_version,
        model_label=launch.model_label,
        cloned_from=cloned_from,
        sweep=sweep,
        num_steps=launch.config.optim.num_steps,
        **({} if fork_of is None else _fork_point(fork_of)),
    )
    if fork_of is not None:
        add_fork_point(run, fork_of)
    EvaluationSet.objects.bulk_create(
        EvaluationSet(
            run=run,
            name=chosen.name,
            dataset_version=chosen.version,
            max_rows=chosen.max_rows,
        )
        for chosen in launch.evaluation_sets
    )
    fork = {"fork_of": fork_of.run_id, "at": fork_of.step} if fork_of else {}
    record(team, user, "run.launched", run, name=launch.name, **fork)
    transaction.on_commit(notify_workers)
    return run


def _lock(launch: Launch, team: Team) -> None:
    """Lock what the run needs against deletion until it is queued."""
    assert launch.recipe_version.recipe.team_id == team.id, "another team's recipe"
    sets = launch.evaluation_sets
    files = launch.config.evaluation.sets
    assert all(files[chosen.name] == eval_rows(chosen.name) for chosen in sets)
    versions = [launch.dataset_version, *(chosen.version for chosen in sets)]
    for version in versions:
        assert version.dataset.team_id == team.id, "another team's dataset"
    for version in sorted(versions, key=lambda version: version.dataset_id):
        lock_untrashed(version)  # in one order, so that two launches never deadlock
    lock_published(team, launch.config.model_dump(mode="json"), versions)


def _fork_point(checkpoint: Checkpoint) -> dict[str, Any]:
    carried = carried_to(checkpoint.run, checkpoint.step)
    return {
        "forked_from": checkpoint.run,
        "fork_step": checkpoint.step,
        "fork_checkpoint": checkpoint.name,
        "fork_sha256": checkpoint.sha256,
        "fork_totals": carried,
        "last_step": checkpoint.step,
        "summary": {"last": totals_of(carried), "best": {}},
    }
