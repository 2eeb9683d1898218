"""The training workers as a team sees them, and as the queue knows them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from django.db.models.functions import Now

from dashboard.accounts.models import Team
from dashboard.runs.checkpoints.files import CheckpointStore
from dashboard.runs.models import HELD, Run, RunAttempt
from dashboard.runs.queries import run_directory
from dashboard.runs.queue.hosts import CLASSES, Host
from dashboard.supervision.checkpoints import checkpoint_folders
from dashboard.supervision.models import Worker
from dashboard.supervision.workers import GONE_AFTER, read_hardware

logger = logging.getLogger(__name__)
MAX_RECENT = 5
MAX_ATTEMPTS = 500  # searched for what each worker ran last
ORDER = {"busy": 0, "idle": 1, "gone": 2, "stopped": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCard:
    worker: Worker
    runs: list[Run]  # this team's
    num_foreign_runs: int  # another team's, not named
    status: str  # idle | busy | stopped | gone
    drained_by: str  # a member of this team, else ""
    recent: list[RunAttempt] = field(default_factory=list)  # this team's, newest first

    @property
    def is_there(self) -> bool:
        return self.status in ("idle", "busy")

    @property
    def takes(self) -> str:
        """The runs that its class is for, in words."""
        name = self.worker.hardware.get("takes", "any")
        return CLASSES.get(name, f"runs of the class {name}")

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs with name, memory and, when it is known, their use."""
        used = self.worker.use.get("gpus", []) if self.is_there else []
        gpus = self.worker.hardware.get("gpus", [])
        uses = [*used, *[{}] * len(gpus)]
        return [{**gpu, "use": use} for gpu, use in zip(gpus, uses, strict=False)]

    @property
    def disk_used(self) -> int:
        disk: int = self.worker.hardware.get("disk_bytes", 0)
        return disk - int(self.worker.use.get("disk_free") or disk)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCounts:
    """The number of workers that are alive."""

    workers: int
    drained: int
    gpus: int


def describe_workers(workers: Iterable[Worker], *, team: Team) -> list[WorkerCard]:
    """Five queries, however many workers there are."""
    workers = list(workers)
    held_runs = list(Run.objects.filter(state__in=HELD).order_by("id"))
    attempts = list(
        RunAttempt.objects.filter(run__team=team, worker__in=[w.name for w in workers])
        .select_related("run")
        .order_by("-claimed_at", "-id")[:MAX_ATTEMPTS]
    )
    members = {m.pk: str(m) for m in team.members.all()}
    silent = set(
        Worker.objects.filter(
            last_seen__lt=Now() - GONE_AFTER, pk__in=[worker.pk for worker in workers]
        ).values_list("pk", flat=True)
    )
    return sorted(
        [
            _describe(worker, held_runs, attempts, members, team, silent)
            for worker in workers
        ],
        key=lambda card: (ORDER[card.status], card.worker.name),
    )


def count_workers(cards: Iterable[WorkerCard]) -> WorkerCounts:
    alive = [card for card in cards if card.is_there]
    return WorkerCounts(
        workers=len(alive),
        drained=sum(card.worker.drained_at is not None for card in alive),
        gpus=sum(len(card.gpus) for card in alive),
    )


def _describe(
    worker: Worker,
    held_runs: list[Run],
    attempts: list[RunAttempt],
    members: dict[int, str],
    team: Team,
    silent: set[int],
) -> WorkerCard:
    runs = [run for run in held_runs if run.worker == worker.name]
    own = [run for run in runs if run.team_id == team.id]
    ended = [
        attempt
        for attempt in attempts
        if attempt.worker == worker.name and attempt.ended_at
    ]
    return WorkerCard(
        worker=worker,
        runs=own,
        num_foreign_runs=len(runs) - len(own),
        status=_status(worker, is_busy=bool(runs), is_silent=worker.pk in silent),
        drained_by=members.get(worker.drained_by_id or 0, ""),
        recent=ended[:MAX_RECENT],
    )


def _status(worker: Worker, *, is_busy: bool, is_silent: bool) -> str:
    if worker.stopped_at is not None:
        return "stopped"
    if is_silent:
        return "gone"
    return "busy" if is_busy else "idle"


# Queued runs that a worker leaves to others.


def sees_files(run: Run) -> bool:
    """Tell whether this worker can read the run's checkpoint; a run without one can
    start anywhere.

    A run whose checkpoints were all deleted waits for no worker; its next one reports
    it. A fork before its first attempt may still have to copy its checkpoint from the
    parent run.
    """
    if not run.checkpoints.filter(superseded_by=None, deleted_at=None).exists():
        return True
    if checkpoint_folders(run_directory(run.id).checkpoints):
        return True
    parent = run.forked_from_id if run.attempt == 0 else None
    return parent is not None and CheckpointStore(parent).is_seen


def left_runs(notice: str) -> frozenset[int]:
    """Read the run IDs in such a notice."""
    match = re.match(r"Leaves queued run ([\d, ]+) to another worker", notice)
    return frozenset(map(int, match[1].split(", "))) if match else frozenset()


def note_unseen(worker: str, runs: list[Run]) -> None:
    """Show on the workers page which runs this worker skips, and why."""
    names = ", ".join(str(run.id) for run in runs)
    notice = (
        f"Leaves queued run {names} to another worker: no checkpoint found under "
        f"{run_directory(runs[0].id).checkpoints}."
        if runs
        else ""
    )
    if notice:
        logger.warning("%s: %s", worker, notice)
    Worker.objects.filter(name=worker).exclude(notice=notice).update(notice=notice)


# Workers as the queue knows them.


def list_hosts() -> list[Host]:
    """List the workers that are alive and not drained; one query."""
    return [
        replace(
            _describe_host(worker.name, worker.hardware),
            num_slots=worker.num_slots,
            leaves=left_runs(worker.notice),
        )
        for worker in Worker.objects.filter(
            stopped_at__isnull=True,
            last_seen__gte=Now() - GONE_AFTER,
            drained_at__isnull=True,
        ).order_by("name")
    ]


def this_host(name: str) -> Host:
    """Return the calling worker; one query.

    It may not have registered yet, or the database may have an old row.
    """
    worker = Worker.objects.filter(name=name, stopped_at__isnull=True).first()
    return _describe_host(name, worker.hardware if worker else read_hardware())


def _describe_host(name: str, hardware: Mapping[str, Any]) -> Host:
    packages = hardware.get("packages")  # workers of an older version lack it
    return Host(
        name=name,
        num_gpus=len(hardware.get("gpus", [])),
        takes=hardware.get("takes", "any"),
        packages=frozenset(packages) if packages is not None else None,
    )
