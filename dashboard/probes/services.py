"""What people do to probes."""

from __future__ import annotations

import random

from django.db import transaction

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.trash import hold_untrashed
from dashboard.jobs.models import OPEN
from dashboard.jobs.queue import cancel, enqueue
from dashboard.probes.models import Probe
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.launch.base_models import hold_published, label_model
from dashboard.runs.models import Checkpoint
from trainer.config import RunConfig

MAX_OPEN = 8  # of a team, waiting or running
MAX_PROMPTS = 256
MAX_SAMPLES = 64
MAX_COMPLETIONS = 4_096


class TooMuch(ValueError):
    """More than a probe takes; the text is for the user."""


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
    """Queue a probe of these rows; with a checkpoint, a try of a row or of `prompt`.

    Raises:
        TooMuch: of prompts, completions or open probes.
        ValueError: the rows' dataset was moved to the trash meanwhile, or the model is
            another team's.
    """
    assert dataset_version.dataset.team_id == team.id, "another team's dataset"
    assert recipe_version is None or recipe_version.recipe.team_id == team.id
    assert checkpoint is None or checkpoint.run.team_id == team.id
    _check_size(1 if prompt else len(positions), num_samples)
    if positions:
        hold_untrashed(dataset_version)
    hold_published(team, config.model_dump(mode="json"))
    _check_open(team)
    probe = Probe.objects.create(
        team=team,
        created_by=user,
        dataset_version=dataset_version,
        recipe_version=recipe_version,
        model_label=_label(config, checkpoint)[:200],
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


def _label(config: RunConfig, checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        return label_model(config.model.path)
    return f"{checkpoint.run.name}, step {checkpoint.step}"


def _check_size(num_prompts: int, num_samples: int) -> None:
    if not 1 <= num_prompts <= MAX_PROMPTS or not 1 <= num_samples <= MAX_SAMPLES:
        raise TooMuch(
            f"A probe takes 1 to {MAX_PROMPTS} prompts and 1 to {MAX_SAMPLES} "
            f"completions of each; got {num_prompts} and {num_samples}."
        )
    if num_prompts * num_samples > MAX_COMPLETIONS:
        raise TooMuch(
            f"{num_prompts} prompts × {num_samples} completions are "
            f"{num_prompts * num_samples:,}; a probe takes {MAX_COMPLETIONS:,} at "
            "most. Take fewer prompts or completions."
        )


def _check_open(team: Team) -> None:
    num_open = Probe.objects.filter(team=team, job__state__in=OPEN).count()
    if num_open >= MAX_OPEN:
        raise TooMuch(
            f"{num_open} probes of {team} wait or run already. Stop one, or wait."
        )


def draw_positions(version: DatasetVersion, count: int, *, seed: int = 0) -> list[int]:
    """So many rows of a version, drawn by the seed."""
    count = min(count, version.num_rows)
    return sorted(random.Random(seed).sample(range(version.num_rows), count))  # noqa: S311 - a repeatable choice, no secret


def request_stop(*, probe: Probe, user: User | None) -> bool:
    """Ask for its end; False when it has ended or is ending already."""
    is_new = cancel(probe.job)
    if is_new:
        record(team=probe.team, actor=user, verb="probe.stop_requested", obj=probe)
    return is_new
