"""Probes: settings, start, stop, purging, and lookups by team."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.utils import timezone
from pydantic import ValidationError

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.analysis.probes.models import Probe
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.trash import lock_untrashed
from dashboard.jobs.kinds import delete_folders, delete_old
from dashboard.jobs.models import OPEN, Job, JobState
from dashboard.jobs.queue import check_open, enqueue
from dashboard.project.errors import UserError
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.checkpoints.files import CheckpointStore
from dashboard.runs.checkpoints.retention import keep_best
from dashboard.runs.config.fields import all_fields, put, write_texts
from dashboard.runs.launch.base_models import StarterModel, label_model, lock_published
from dashboard.runs.launch.fit import estimate_memory, fit_to_rows
from dashboard.runs.launch.launching import Launch
from dashboard.runs.models import HELD as HELD_RUNS
from dashboard.runs.models import Checkpoint, Run
from dashboard.runs.queries import ROWS
from dashboard.runs.queue.hosts import SHOWN_HOSTS, known_hosts
from dashboard.runs.queue.messages import rough_duration
from dashboard.runs.queue.order import seconds_until_free
from trainer.config import RunConfig
from trainer.rewards.spec import Recipe

MAX_OPEN = 8  # of a team, waiting or running
MAX_PROMPTS = 256
MAX_SAMPLES = 64
MAX_COMPLETIONS = 4_096
# As many prompts as a training step, within bounds.
FEWEST_PROMPTS, MOST_PROMPTS, MOST_SAMPLES = 16, 64, 16
KEPT = timedelta(days=30)  # after its end
MOST_KEPT = 200  # of a team
RELATED = (
    *("dataset_version__dataset", "recipe_version__recipe", "created_by"),
    "checkpoint__run",
    "job",
)
NUM_LISTED = 20
MEMORY_SHARE = 0.5  # of what is free: the run's own use grows


@transaction.atomic
def start_probe(
    *,
    team: Team,
    user: User | None,
    config: RunConfig,
    dataset_version: DatasetVersion,
    positions: list[int],
    num_samples: int,
    recipe_version: RecipeVersion | None = None,
    is_sample: bool = False,
    checkpoint: Checkpoint | None = None,
    prompt: str = "",
    is_scored: bool = True,
) -> Probe:
    """Queue a probe of these rows, or of a checkpoint with a row or `prompt`.

    Raises:
        UserError: too many prompts, completions or open probes.
        ValueError: the dataset is in the trash, or the model is another team's.
    """
    assert dataset_version.dataset.team_id == team.id, "another team's dataset"
    assert recipe_version is None or recipe_version.recipe.team_id == team.id
    assert checkpoint is None or checkpoint.run.team_id == team.id
    _check_size(1 if prompt else len(positions), num_samples)
    if positions:
        lock_untrashed(dataset_version)
    lock_published(team, config.model_dump(mode="json"), [dataset_version])
    check_open(
        team,
        Probe.objects.all(),
        most=MAX_OPEN,
        nouns="tests",
        code="probes.too_many_open",
    )
    label = (
        label_model(config.model.path)
        if checkpoint is None
        else f"{checkpoint.run.name}, step {checkpoint.step}"
    )
    probe = Probe.objects.create(
        team=team,
        created_by=user,
        dataset_version=dataset_version,
        recipe_version=recipe_version,
        model_label=label[:200],
        config=config.model_dump(mode="json"),
        positions=sorted(positions),
        num_samples=num_samples,
        is_sample=is_sample,
        checkpoint=checkpoint,
        prompt=prompt,
        is_scored=is_scored,
    )
    tried = (
        {"run": checkpoint.run_id, "checkpoint": checkpoint.name} if checkpoint else {}
    )
    record(team, user, "probe.started", probe, **tried)
    probe.job = enqueue(
        "probe",
        probe.pk,
        team_id=team.pk,
        user=user,
        total=2 if probe.checkpoint else probe.num_prompts,
        unit="models" if probe.checkpoint else "prompts",
    )
    probe.save(update_fields=["job"])
    return probe


def _check_size(num_prompts: int, num_samples: int) -> None:
    if not 1 <= num_prompts <= MAX_PROMPTS or not 1 <= num_samples <= MAX_SAMPLES:
        raise UserError(
            "probes.size",
            f"A test samples 1 to {MAX_PROMPTS} prompts with 1 to {MAX_SAMPLES} "
            f"completions each; got {num_prompts} and {num_samples}.",
        )
    if num_prompts * num_samples > MAX_COMPLETIONS:
        raise UserError(
            "probes.too_many_completions",
            f"A test samples at most {MAX_COMPLETIONS:,} completions; "
            f"{num_prompts} prompts × {num_samples} are "
            f"{num_prompts * num_samples:,}. Use fewer prompts or completions.",
        )


def draw_positions(version: DatasetVersion, count: int, *, seed: int = 0) -> list[int]:
    """`count` rows of a version, drawn with the seed."""
    count = min(count, version.num_rows)
    return sorted(random.Random(seed).sample(range(version.num_rows), count))  # noqa: S311 - a repeatable choice, no secret


def probe_launched(
    team: Team,
    user: User,
    launch: Launch,
    *,
    positions: Sequence[int] = (),
    num_prompts: int | None = None,
    num_samples: int | None = None,
    is_sample: bool = False,
) -> Probe:
    """Probe these rows, or so many drawn ones; ValueError as `start_probe`."""
    rollout = launch.config.phase_configs[0].config.rollout
    if num_samples is None:
        num_samples = min(rollout.group_size, MOST_SAMPLES)
    if num_prompts is None:
        num_prompts = max(FEWEST_PROMPTS, min(rollout.prompts_per_step, MOST_PROMPTS))
        num_prompts = min(num_prompts, max(1, MAX_COMPLETIONS // num_samples))
    version, seed = launch.dataset_version, launch.config.seed
    return start_probe(
        team=team,
        user=user,
        config=launch.config,
        dataset_version=version,
        positions=list(positions) or draw_positions(version, num_prompts, seed=seed),
        num_samples=num_samples,
        recipe_version=launch.recipe_version,
        is_sample=is_sample,
    )


# Purging.


def purge_probes() -> int:
    """Delete them with completions and files; return how many."""
    num_old = delete_old(Probe.objects.all(), keep=KEPT, most=MOST_KEPT)
    sweep_folders()
    return num_old


def release_tested_checkpoints() -> None:
    """Leave checkpoints to their trainers again that were kept for a try."""
    runs = (
        Probe.objects.filter(job__finished_at__gte=timezone.now() - timedelta(days=1))
        .exclude(checkpoint=None)
        .values_list("checkpoint__run", flat=True)
    )
    for run_id in runs.distinct():
        if CheckpointStore(run_id).is_seen:
            keep_best(run_id)


def sweep_folders() -> None:
    """Remove from this machine the files of probes that were deleted."""
    delete_folders(probes_folder(), Probe.objects.all())


def probes_folder() -> Path:
    return Path(settings.COHORT_DATA) / "probes"


# Settings of probes that do not come from a launch form.


def config_of_model(
    path: str,
    recipe: Recipe,
    *,
    version: DatasetVersion,
    starters: list[StarterModel],
    rollout: dict[str, Any],
) -> RunConfig:
    """Return the settings of a starter model, or Cohort's defaults, with changes.

    Lengths are made to fit the version's rows, as in the launch form.

    Raises:
        ValueError: the settings contradict each other; one sentence for each.
    """
    starter = next((starter for starter in starters if starter.path == path), None)
    tree = starter.read_settings() if starter and starter.has_settings else {}
    tree["model"] = {**tree.get("model", {}), "path": path}
    for setting, text in fit_to_rows(write_texts(tree), version, path).texts.items():
        put(tree, setting, all_fields()[setting].read_or_text(text))
    tree["data"] = {**tree.get("data", {}), "rows": ROWS}
    tree["reward"] = {
        **tree.get("reward", {}),
        "recipe": recipe.model_dump(mode="json"),
    }
    values = {name: value for name, value in rollout.items() if value is not None}
    tree["rollout"] = {**tree.get("rollout", {}), **values}
    return _checked(tree)


def config_of_checkpoint(
    checkpoint: Checkpoint, recipe: Recipe | None, *, seed: int, rollout: dict[str, Any]
) -> RunConfig:
    """Return the settings with which the checkpoint's phase samples and scores.

    Raises:
        ValueError: the settings contradict each other; one sentence for each.
    """
    own = settings_at(checkpoint)
    sampling = own.rollout.model_dump(
        include={
            "top_p",
            "top_k",
            "min_p",
            "repetition_penalty",
            "stop",
            "max_batch_rows",
            "decoding",
        }
    )
    recipe = recipe or own.reward.recipe
    scoring = {"recipe": recipe, "num_workers": own.reward.num_workers}
    return _checked(
        {
            "seed": seed,
            "model": own.model,
            "data": {**own.data.model_dump(), "num_eval_rows": 0},
            "rollout": {**sampling, **rollout},
            "environment": own.environment,
            "reward": scoring,
            "distributed": {"num_threads": own.distributed.num_threads},
        }
    )


def settings_at(checkpoint: Checkpoint) -> RunConfig:
    """Read the run's settings in the phase that the checkpoint was saved in."""
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


# Lookups. Another team's probes are not found.


def get_probe(team: Team, probe_id: int) -> Probe:
    return get_object_or_404(team.probes.select_related(*RELATED), pk=probe_id)


def list_probes(team: Team) -> QuerySet[Probe]:
    return team.probes.select_related(*RELATED).order_by("-id")[:NUM_LISTED]


def list_tests(run: Run) -> QuerySet[Probe]:
    """Return the newest tests of the run's checkpoints."""
    return (
        Probe.objects.filter(checkpoint__run=run)
        .select_related(*RELATED)
        .order_by("-id")[:NUM_LISTED]
    )


def get_test(run: Run, probe_id: int) -> Probe:
    return get_object_or_404(
        Probe.objects.filter(checkpoint__run=run).select_related(*RELATED), pk=probe_id
    )


def waiting_reason(probe: Probe) -> str:
    """Return why a queued probe does not run yet; three queries."""
    if probe.job is None or probe.state != JobState.QUEUED:
        return ""
    waits = describe_wait(probe.config) or "A training worker takes it"
    waits = f"Waiting: {waits}."
    before = Job.objects.filter(
        kind=probe.job.kind, state__in=OPEN, pk__lt=probe.job.pk
    ).count()
    ahead = f" {before} test{'s are' if before != 1 else ' is'} ahead of this one."
    return waits + (ahead if before else "")


def fits_beside(config: Mapping[str, Any] | None) -> bool:
    """Tell whether a probe may run on the CPU while a run trains: it has the memory."""
    if config is None:
        return False
    run = RunConfig.model_validate(config)
    needs_gpu = run.model.device == "cuda" or run.model.quantization != "none"
    is_single = run.distributed.num_ranks == 1
    if needs_gpu or not is_single or run.rollout.engine == "vllm":
        return False
    num_bytes = estimate_memory(run).total
    return 0 < num_bytes <= MEMORY_SHARE * int(psutil.virtual_memory().available)


def describe_wait(config: Mapping[str, Any]) -> str:
    """Return when a new probe of this configuration starts; "" if a worker is free."""
    hosts = known_hosts()
    if not hosts:
        return "no training worker is running"
    names = [host.name for host in hosts]
    held = Run.objects.filter(worker__in=names, state__in=HELD_RUNS).count()
    if held < sum(host.num_slots for host in hosts):
        return ""
    shown = ", ".join(names[:SHOWN_HOSTS])
    more = f" and {len(names) - SHOWN_HOSTS} more" if len(names) > SHOWN_HOSTS else ""
    runs = "a run" if held == 1 else f"{held} runs"
    busy = f"{shown}{more} {'is' if len(names) == 1 else 'are'} busy with {runs}"
    if fits_beside(config):
        return f"{busy}; a test starts within 15 s beside it, on the CPU"
    seconds = seconds_until_free()
    when = "when it ends" if seconds is None else f"in about {rough_duration(seconds)}"
    return f"{busy}; a test starts {when}"
