"""Training workers as the queue knows them: what they have and what they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.db.models.functions import Now

from dashboard.runs.queue.hosts import Host
from dashboard.training.models import Worker
from dashboard.training.visibility import left_runs
from dashboard.training.workers import GONE_AFTER, read_hardware


def list_hosts() -> list[Host]:
    """Those that are alive and not drained; one query."""
    since = Now() - GONE_AFTER
    alive = Worker.objects.filter(
        stopped_at__isnull=True, last_seen__gte=since, drained_at__isnull=True
    )
    return [
        replace(
            _describe(worker.name, worker.hardware),
            num_slots=worker.num_slots,
            leaves=left_runs(worker.notice),
        )
        for worker in alive.order_by("name")
    ]


def this_host(name: str) -> Host:
    """The worker of this name, which asks for itself; one query.

    It may not have registered yet, or the database may know an older one.
    """
    known = Worker.objects.filter(name=name, stopped_at__isnull=True).first()
    return _describe(name, known.hardware if known else read_hardware())


def _describe(name: str, hardware: Mapping[str, Any]) -> Host:
    packages = hardware.get("packages")  # workers of an older version lack it
    return Host(
        name=name,
        num_gpus=len(hardware.get("gpus", [])),
        takes=hardware.get("takes", "any"),
        packages=frozenset(packages) if packages is not None else None,
    )
