"""A training worker: its hardware, which runs it accepts, and its heartbeat."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

from django.conf import settings
from django.db import DatabaseError, connection
from django.db.models.functions import Now
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from dashboard.accounts.templatetags.numbers import num_bytes
from dashboard.project.environment import visible_gpus
from dashboard.rewards.trial import Sandbox, sandbox_here
from dashboard.runs.queue.hosts import Device
from dashboard.supervision.lease import is_drained, lose_attempt
from dashboard.supervision.models import Worker
from dashboard.supervision.system_metrics import METRICS, Reader, Values
from trainer.config import installed_packages
from trainer.rewards.sandbox.slot import START_SECONDS

logger = logging.getLogger(__name__)
ASK_SECONDS = 60
_ASK_TORCH = """
import json, warnings, torch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    found = torch.cuda.is_available()
messages = [str(each.message).strip() for each in caught]
print(json.dumps([torch.__version__, torch.version.cuda, found, messages]))
"""
HEARTBEAT_SECONDS = 5.0
GONE_AFTER = timedelta(seconds=45)


def takes_here() -> str:
    """COHORT_WORKER_CLASS, as stored with the hardware."""
    takes: str = settings.COHORT_WORKER_CLASS
    return takes


def keep_visible(gpus: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep the GPUs that CUDA shows to this process; nvidia-smi lists the whole
    machine's.

    As in CUDA, the list ends at the first missing one, such as -1. GPUs named by UUID
    are only counted; the machine's first ones stand for them.
    """
    visible = visible_gpus()
    if takes_here() == "cpu":
        return []
    if visible is None:
        return list(gpus)
    names = [name.strip() for name in visible.split(",")]
    if names[0].startswith(("GPU-", "MIG-")):
        return list(gpus)[: len(names)]
    there = {str(number): gpu for number, gpu in enumerate(gpus)}
    return [there[name] for name in takewhile(there.__contains__, names)]


def trainer_variables() -> dict[str, str]:
    """Return variables that keep a trainer to its worker's class."""
    return {"CUDA_VISIBLE_DEVICES": ""} if takes_here() == "cpu" else {}


def training_device() -> str:
    """Say which device runs train on here, and why."""
    machine = read_gpus()
    if takes_here() == "cpu":
        return _on_the_cpu("COHORT_WORKER_CLASS is cpu")
    if not machine:
        return _on_the_cpu("nvidia-smi finds no GPU")
    gpus = keep_visible(machine)
    if not gpus:
        return _on_the_cpu(f"CUDA_VISIBLE_DEVICES={visible_gpus()} shows no GPU")
    if refusal := _refusal_of_torch():
        return _on_the_cpu(refusal)
    names = [f"{gpu['name']} ({num_bytes(gpu['memory_bytes'])})" for gpu in gpus]
    return f"Runs train on the GPU: {', '.join(names)}."


def _on_the_cpu(reason: str) -> str:
    return f"Runs train on the CPU: {reason}."


def _refusal_of_torch() -> str:
    """Say why PyTorch cannot use this machine's GPU; empty if it can.

    A subprocess checks it, because the web process never imports PyTorch.
    """
    command = [sys.executable, "-c", _ASK_TORCH]
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=ASK_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return f"PyTorch did not respond within {ASK_SECONDS} s"
    if child.returncode or not child.stdout.strip():
        return "PyTorch cannot be imported"
    version, cuda, is_available, messages = json.loads(child.stdout.splitlines()[-1])
    if is_available:
        return ""
    if cuda is None:
        package = f"torch=={version.split('+')[0]}"
        return (
            f"PyTorch {version} is built without CUDA. Install the CUDA build: "
            f".venv/bin/pip install --force-reinstall {package}"
        )
    reason = (
        messages[0].splitlines()[0].rstrip(".") if messages else "it finds no device"
    )
    return f"PyTorch {version} cannot use the GPU: {reason}"


def read_gpus() -> list[dict[str, Any]]:
    """List the whole machine's GPUs by nvidia-smi."""
    query = [
        "nvidia-smi",
        "--query-gpu=name,memory.total",
        "--format=csv,noheader,nounits",
    ]
    try:
        result = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []  # no GPU here that nvidia-smi knows
    if result.returncode:
        return []
    rows = [line.rsplit(",", 1) for line in result.stdout.strip().split("\n") if line]
    return [
        {"name": name.strip(), "memory_bytes": int(mib) * 2**20}
        for name, mib in rows
        if mib.strip().isdigit()
    ]


def list_devices() -> list[Device]:
    """List the devices of the workers that are alive; one query."""
    workers = Worker.objects.filter(
        stopped_at__isnull=True, last_seen__gte=Now() - GONE_AFTER
    )
    devices = []
    for worker in workers:
        devices += [
            Device(name=gpu["name"], memory_bytes=gpu["memory_bytes"], is_gpu=True)
            for gpu in worker.hardware.get("gpus", [])
        ]
        devices.append(
            Device(
                name=f"{worker.name}'s machine",
                memory_bytes=worker.hardware.get("memory_bytes", 0),
                is_gpu=False,
            )
        )
    return devices


class BesideHeartbeat(Protocol):
    """A side job of the heartbeat, as in clusters.py and beside.py."""

    def tick(self) -> None:
        """Called every 5 s; must not wait."""

    def stop(self) -> None: ...


class WorkerHeartbeat:
    """Reports every 5 s to the database that this worker is alive; never raises.

    `on_drain` is called with True when the worker is drained, and with False when it is
    undrained.
    """

    def __init__(
        self,
        name: str,
        *,
        num_slots: int,
        on_drain: Callable[[bool], None] = lambda _is_drained: None,
        beside: Sequence[BesideHeartbeat] = (),
    ) -> None:
        self.name = name
        self.num_slots = num_slots
        self._on_drain = on_drain
        self._beside = beside
        self._is_drained = False
        self._is_registered = False
        # As the database has them.
        self._sandbox: Sandbox | None = None
        self._packages: list[str] | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        reader = Reader(Path(settings.COHORT_DATA))
        try:
            while True:
                self._send(reader)
                self._apply_drain()
                self._report_facts()
                self._tick_beside()
                if self._end.wait(HEARTBEAT_SECONDS):
                    break
            try:
                Worker.objects.filter(name=self.name).update(stopped_at=Now())
            except DatabaseError as error:
                logger.warning("The worker failed to report its shutdown: %s", error)
        finally:
            for job in self._beside:
                job.stop()
            connection.close()

    def _send(self, reader: Reader) -> None:
        try:
            use = describe_use(reader.read())
            row = Worker.objects.filter(name=self.name)
            # Its row may be deleted, as after a week of sleep.
            if not self._is_registered or not row.update(last_seen=Now(), use=use):
                register(self.name, num_slots=self.num_slots)
                self._is_registered = True
                self._sandbox = self._packages = None
        except DatabaseError as error:
            logger.warning("The worker failed to report to the database: %s", error)
            connection.close()

    def _apply_drain(self) -> None:
        try:
            drained = is_drained(self.name)
        except DatabaseError:
            return  # the last known state applies
        if drained == self._is_drained:
            return
        try:
            self._on_drain(drained)
        except (OSError, OperationalError, RedisError) as error:
            logger.warning(
                "The worker failed to apply its drain state and retries: %s", error
            )
            return
        self._is_drained = drained

    def _report_facts(self) -> None:
        """Report packages and sandbox, after the heartbeat: the sandbox test is slow.

        A package that was installed since is available to the next run.
        """
        packages = installed_packages()
        if packages != self._packages and self._store_facts(packages=packages):
            self._packages = packages
        sandbox = sandbox_here(timeout_seconds=START_SECONDS)
        if sandbox != self._sandbox and self._store_facts(sandbox=asdict(sandbox)):
            self._sandbox = sandbox

    def _tick_beside(self) -> None:
        for job in self._beside:
            try:
                job.tick()
            except DatabaseError as error:
                logger.warning("%s failed beside the heartbeat: %s", type(job), error)
                connection.close()

    def _store_facts(self, **facts: Any) -> bool:
        try:
            store_facts(self.name, **facts)
        except DatabaseError as error:
            logger.warning(
                "The worker failed to report its hardware and packages: %s", error
            )
            connection.close()
            return False
        return True


def describe_use(values: Values) -> dict[str, Any]:
    """Name the values, and those of each GPU."""
    gpus = values[len(METRICS) :]
    return {
        **dict(zip(METRICS, values, strict=False)),
        "gpus": [
            {"percent": percent, "memory_bytes": memory}
            for percent, memory in zip(gpus[::2], gpus[1::2], strict=True)
        ],
    }


def reclaim(name: str) -> list[int]:
    """Requeue at once the runs of a dead process with the same name on this host;
    returns their IDs.

    This does not wait for the leases to expire. Called before the worker's first task,
    so no run can belong to the new process.
    """
    before = Worker.objects.filter(name=name, host=socket.gethostname()).first()
    if before is None:
        return []
    # A container started again gives its process the number that it had.
    if before.pid != os.getpid() and Path(f"/proc/{before.pid}").exists():
        return []
    return [
        run.id
        for run in before.held_runs()
        if lose_attempt(run, outcome=f"its worker {name} died and was restarted")
    ]


def register(name: str, *, num_slots: int) -> None:
    Worker.objects.update_or_create(
        name=name,
        defaults={
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "num_slots": num_slots,
            "hardware": read_hardware(),
            "use": {},
            "notice": "",
            "started_at": Now(),
            "last_seen": Now(),
            "stopped_at": None,
        },
    )


def store_facts(name: str, **facts: Any) -> None:
    """Store facts of a registered worker's machine."""
    worker = Worker.objects.filter(name=name).first()
    if worker is not None:
        worker.hardware |= facts
        worker.save(update_fields=["hardware"])


def read_hardware() -> dict[str, Any]:
    return {
        "takes": takes_here(),
        "cpu": _read_cpu(),
        "num_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "disk_bytes": _read_disk_bytes(),
        "gpus": keep_visible(read_gpus()),
    }


def _read_disk_bytes() -> int | None:
    try:
        return shutil.disk_usage(settings.COHORT_DATA).total
    except OSError:
        return None


def _read_cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
    except OSError:
        return ""
    names = [line.split(":", 1)[1] for line in lines if line.startswith("model name")]
    return names[0].strip() if names else ""
