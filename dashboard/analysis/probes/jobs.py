"""A probe on a training worker: starts its trainer, follows its log and stops it."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from dashboard.analysis.probes.models import Probe, ProbeGroup
from dashboard.analysis.probes.services import (
    fits_beside,
    probes_folder,
    purge_probes,
    release_tested_checkpoints,
    sweep_folders,
)
from dashboard.costs.models import add_judge_use, judge_models
from dashboard.datasets.limits import check_disk_space_to_store
from dashboard.datasets.row import Row, write_content
from dashboard.datasets.tokenizer_pool import refuse_environment
from dashboard.jobs.kinds import (
    Context,
    JobCancelled,
    JobReleased,
    Kind,
    LeaseLost,
    register,
    register_purge,
)
from dashboard.project.database import clean_json, clean_text
from dashboard.project.errors import UserError
from dashboard.runs.checkpoints.files import CheckpointStore, FilesGone, gone
from dashboard.runs.models import Checkpoint
from dashboard.supervision.event_log import LogTailer, read_tail
from dashboard.supervision.process import TrainerProcess
from trainer.rewards.spec import Recipe

LEASE = timedelta(seconds=60)
POLL_SECONDS = 0.1
GRACE_SECONDS = 30.0  # for a stopped trainer to write its results
TAIL_LINES = 6
STOPPED_CODE = 3
PHASES = {"sampling": "Sampling.", "updating": "Timing an update."}


def probe_folder(probe_id: int) -> Path:
    return probes_folder() / str(probe_id)


def probe_command(probe: Probe, folder: Path) -> list[str]:
    options = ["--sample-only"] if probe.is_sample else []
    if probe.checkpoint is not None:
        options = ["--checkpoint", str(_folder_of(probe.checkpoint))]
        options += [] if probe.is_scored else ["--no-scores"]
    return [
        *(sys.executable, "-m", "trainer", "probe", str(folder / "probe.json")),
        *("--out", str(folder / "probe.jsonl")),
        *("--samples", str(probe.num_samples), *options),
    ]


def _folder_of(checkpoint: Checkpoint) -> Path:
    folder = CheckpointStore(checkpoint.run_id).find(checkpoint.name)
    if folder is None:
        raise FilesGone(gone(checkpoint.name))
    return folder


def probe(
    context: Context,
    command: Callable[[Probe, Path], list[str]] = probe_command,
) -> None:
    """Run the probe's trainer until it exits."""
    row = (
        Probe.objects.select_related("dataset_version__dataset", "checkpoint")
        .filter(pk=context.job.target_id)
        .first()
    )
    if row is None:
        raise JobCancelled  # its checkpoint was deleted
    environment = row.config.get("environment") or {}
    if why := refuse_environment(environment, [row.dataset_version]):
        raise UserError("probes.bad_taskset", why)
    sweep_folders()
    folder = probe_folder(row.pk)
    row.groups.all().delete()  # of a worker that was lost
    context.note(0, message="Loading the model.")
    try:
        write_snapshot(row, folder)
        started = command(row, folder)
    except FilesGone as error:
        raise ValueError(str(error)) from None
    except OSError as error:
        raise ValueError(f"Failed to write the test's files: {error}.") from error
    _Following(context, row, folder).see_through(started)


def write_snapshot(probe: Probe, folder: Path) -> None:
    """Write the configuration and the rows into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = probe.dataset_version.rows.filter(position__in=probe.positions)
    chosen = (row.as_row() for row in rows.order_by("position"))
    typed = [Row(prompt=probe.prompt)]
    with (folder / "rows.jsonl").open("wb") as file:
        write_content(typed if probe.prompt else chosen, file)
    (folder / "probe.json").write_text(
        json.dumps(
            {**probe.config, "data": {**probe.config["data"], "rows": "rows.jsonl"}}
        ),
        encoding="utf-8",
    )


class _Following:
    """Follows the trainer of a probe and stores its messages."""

    def __init__(self, context: Context, row: Probe, folder: Path) -> None:
        self._context = context
        self._row = row
        self._positions = row.positions or [0]  # of a typed prompt
        self._folder = folder
        self._follower = LogTailer(folder / "probe.jsonl")
        self._error = ""
        self._stop_requested_at: float | None = None

    def see_through(self, command: list[str]) -> None:
        log = self._folder / "trainer.log"
        # The run's worker has its GPUs.
        variables = {"CUDA_VISIBLE_DEVICES": ""} if self._context.is_beside else {}
        with TrainerProcess(command, log=log, variables=variables) as trainer:
            while True:
                # Checked before reading, so that the last lines are read too.
                has_exited = trainer.has_exited()
                num_lines = self._store()
                if has_exited and not num_lines:
                    break
                self._check_stop(trainer)
                trainer.cap_log()
                time.sleep(POLL_SECONDS)
            status = trainer.reap()
        self._conclude(status, log)

    def _store(self) -> int:
        lines = self._follower.read()
        messages = [clean_json(json.loads(line)) for line in lines.texts]
        if messages:
            self._take(messages)
        if lines:
            self._follower.advance(lines)
        return len(lines.texts)

    def _take(self, messages: list[dict[str, Any]]) -> None:
        groups = []
        metrics: dict[str, Any] | None = None
        for message in messages:
            match message["type"]:
                case "phase":
                    self._context.note(message=PHASES.get(message["name"], ""))
                case "progress":
                    self._context.note(message["done"])
                case "measured":
                    metrics = message["metrics"]
                    if self._context.is_beside:
                        metrics["is_beside_run"] = True  # so its times are long
                case "failed":
                    self._error = message["error"]
                case "group":
                    groups.append(
                        ProbeGroup(
                            probe_id=self._row.pk,
                            position=self._positions[message["row"]],
                            is_base=message.get("is_base", False),
                            completions=message["completions"],
                        )
                    )
        if not self._context.held().exists():
            raise LeaseLost
        if metrics is not None:
            Probe.objects.filter(pk=self._row.pk).update(metrics=metrics)
        check_disk_space_to_store(0, purpose="the test")
        ProbeGroup.objects.bulk_create(groups, ignore_conflicts=True)
        recipe = Recipe.model_validate(self._row.config["reward"]["recipe"])
        for message in messages:
            add_judge_use(
                message.get("usage", {}),
                models=judge_models(recipe),
                team=self._row.team,
                user=self._row.created_by,
                source="probe",
                target_id=self._row.pk,
            )

    def _check_stop(self, trainer: TrainerProcess) -> None:
        """Ask a cancelled trainer to stop; kill it after the grace period."""
        try:
            self._context.check()
        except JobCancelled:
            if self._stop_requested_at is None:
                self._stop_requested_at = time.monotonic()
                trainer.ask_to_stop()
            has_waited = time.monotonic() - self._stop_requested_at > GRACE_SECONDS
            if has_waited or self._context.is_shutting_down():
                trainer.kill()
        except JobReleased:
            self._row.groups.all().delete()
            self._context.note(0, message="")
            raise

    def _conclude(self, status: int, log: Path) -> None:
        self._context.note(message="")
        if status == STOPPED_CODE or (status and self._stop_requested_at is not None):
            raise JobCancelled
        if status:
            raise ValueError(clean_text(self._error or _last_words(status, log)))


def _last_words(status: int, log: Path) -> str:
    how = f"on signal {-status}" if status < 0 else f"with exit code {status}"
    tail = "\n".join(read_tail(log, max_lines=TAIL_LINES)).strip()
    message = f" Last output: {tail}" if tail else ""
    return f"The trainer exited {how} without an error message.{message}"


register(
    Kind(
        name="probe",
        run=probe,
        noun="test",
        queue="training",
        is_exclusive=False,
        lease=LEASE,
        fits_beside=lambda probe_id: fits_beside(
            Probe.objects.filter(pk=probe_id).values_list("config", flat=True).first()
        ),
    )
)
register_purge(purge_probes)
register_purge(release_tested_checkpoints)
