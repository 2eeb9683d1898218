"""Training workers saying that they are alive."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.db import DatabaseError, connection
from django.db.models.functions import Now
from django.utils import timezone

from dashboard.accounts.models import Team
from dashboard.rewards.sandboxes import Sandbox, sandbox_here
from dashboard.runs.devices import Device
from dashboard.runs.models import HELD, Run
from dashboard.training.lives import lose_life
from dashboard.training.models import Worker
from trainer.rewards.sandbox.slot import START_SECONDS

logger = logging.getLogger(__name__)
BEAT_SECONDS = 10.0
GONE_AFTER = timedelta(seconds=45)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCard:
    """A worker as one team may see it."""

    worker: Worker
    runs: list[Run]  # this team's
    num_foreign_runs: int  # another team's, not named
    status: str  # idle | busy | stopped | gone


def describe_workers(workers: Iterable[Worker], *, team: Team) -> list[WorkerCard]:
    """Two queries, however many workers there are."""
    held = list(Run.objects.filter(state__in=HELD).order_by("id"))
    now = timezone.now()
    cards = [_describe(worker, held, team, now) for worker in workers]
    order = {"busy": 0, "idle": 1, "gone": 2, "stopped": 3}
    return sorted(cards, key=lambda card: (order[card.status], card.worker.name))


def _describe(worker: Worker, held: list[Run], team: Team, now: datetime) -> WorkerCard:
    runs = [run for run in held if run.worker == worker.name]
    own = [run for run in runs if run.team_id == team.id]
    return WorkerCard(
        worker=worker,
        runs=own,
        num_foreign_runs=len(runs) - len(own),
        status=_status(worker, is_busy=bool(runs), now=now),
    )


def _status(worker: Worker, *, is_busy: bool, now: datetime) -> str:
    if worker.stopped_at is not None:
        return "stopped"
    if now - worker.last_seen > GONE_AFTER:
        return "gone"
    return "busy" if is_busy else "idle"


def list_devices() -> list[Device]:
    """What the workers that are there have to train on; one query."""
    since = timezone.now() - GONE_AFTER
    workers = Worker.objects.filter(stopped_at__isnull=True, last_seen__gte=since)
    return [device for worker in workers for device in _devices_of(worker)]


def _devices_of(worker: Worker) -> list[Device]:
    hardware = worker.hardware
    gpus = [
        Device(name=gpu["name"], memory_bytes=gpu["memory_bytes"], is_gpu=True)
        for gpu in hardware.get("gpus", [])
    ]
    cpu = Device(
        name=f"{worker.name}'s machine",
        memory_bytes=hardware.get("memory_bytes", 0),
        is_gpu=False,
    )
    return [*gpus, cpu]


class WorkerBeat:
    """Tells the database every 10 s that this worker lives; never fails it."""

    def __init__(self, name: str, *, num_slots: int) -> None:
        self.name = name
        self.num_slots = num_slots
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="beat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(timeout=5)

    def _beat(self) -> None:
        is_registered = False
        sandbox = None
        try:
            while True:
                is_registered = self._say(is_registered)
                sandbox = self._say_sandbox(sandbox)
                if self._end.wait(BEAT_SECONDS):
                    break
            self._farewell()
        finally:
            connection.close()

    def _say(self, is_registered: bool) -> bool:
        try:
            if not is_registered:
                register(self.name, num_slots=self.num_slots)
            else:
                Worker.objects.filter(name=self.name).update(last_seen=Now())
        except DatabaseError as error:
            logger.warning("The worker could not report to the database: %s", error)
            connection.close()
            return is_registered
        return True

    def _say_sandbox(self, told: Sandbox | None) -> Sandbox | None:
        """After the first word, since a busy machine takes long to find it out."""
        found = sandbox_here(timeout_seconds=START_SECONDS)
        if found == told:
            return told
        try:
            tell_sandbox(self.name, found)
        except DatabaseError as error:
            logger.warning("The worker could not report its sandbox: %s", error)
            connection.close()
            return told
        return found

    def _farewell(self) -> None:
        try:
            Worker.objects.filter(name=self.name).update(stopped_at=Now())
        except DatabaseError as error:
            logger.warning("The worker could not sign off: %s", error)


def reclaim(name: str) -> list[int]:
    """Requeue at once what a dead process of the same name on this host still holds.

    Without waiting for the leases to run out; the ids of the runs. Called before the
    worker takes its first task, so nothing it holds can be the new process's own.
    """
    before = Worker.objects.filter(name=name, host=socket.gethostname()).first()
    if before is None or Path(f"/proc/{before.pid}").exists():
        return []
    return [
        run.id
        for run in before.held_runs()
        if lose_life(run, outcome=f"its worker {name} died and was started again")
    ]


def register(name: str, *, num_slots: int) -> None:
    Worker.objects.update_or_create(
        name=name,
        defaults={
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "num_slots": num_slots,
            "hardware": read_hardware(),
            "notice": "",
            "started_at": Now(),
            "last_seen": Now(),
            "stopped_at": None,
        },
    )


def tell_sandbox(name: str, sandbox: Sandbox) -> None:
    worker = Worker.objects.filter(name=name).first()
    if worker is not None:
        worker.hardware |= {"sandbox": sandbox.as_json()}
        worker.save(update_fields=["hardware"])


def read_hardware() -> dict[str, Any]:
    return {
        "cpu": _read_cpu(),
        "num_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": _read_gpus(),
    }


def _read_cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
    except OSError:
        return ""
    names = [line.split(":", 1)[1] for line in lines if line.startswith("model name")]
    return names[0].strip() if names else ""


def _read_gpus() -> list[dict[str, Any]]:
    query = [
        "nvidia-smi",
        "--query-gpu=name,memory.total",
        "--format=csv,noheader,nounits",
    ]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []  # no GPU here that nvidia-smi knows
    if answer.returncode:
        return []
    rows = [line.rsplit(",", 1) for line in answer.stdout.strip().split("\n") if line]
    return [
        {"name": name.strip(), "memory_bytes": int(mib) * 2**20}
        for name, mib in rows
        if mib.strip().isdigit()
    ]
