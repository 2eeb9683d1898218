"""Ray clusters: which one a team uses, and what a worker reads of it.

A Ray cluster can run code in a process that connects to it. So the
operator names the clusters, by COHORT_RAY_ADDRESS and COHORT_RAY_TEAM_ADDRESSES, and a
team chooses among these.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.project.database import clean_json
from dashboard.project.environment import ROOT
from dashboard.runs.models import Run
from dashboard.runs.queue import hosts
from dashboard.runs.trash import stored_folders_to_delete
from dashboard.supervision.models import Cluster, TeamCluster
from dashboard.supervision.process import RAY_TOKENS, withhold
from dashboard.web.edits import find_changes

logger = logging.getLogger(__name__)
READ_EVERY = timedelta(seconds=30)
# The command gives up after 20 s by itself.
READ_SECONDS = 30.0
DELETE_SECONDS = 600.0
DELETE_AGAIN_SECONDS = 600.0  # after a failure
DELETE_REST_SECONDS = 60.0
# Two readings and the longest one may be missed.
CURRENT_FOR = timedelta(minutes=2)
MAX_NODES = 1_024
LONGEST_NAME = 120
LONGEST_PROBLEM = 500


def allowed_addresses() -> list[str]:
    """List the default first; empty: the operator has set up no cluster."""
    default: str = settings.COHORT_RAY_ADDRESS
    others: tuple[str, ...] = settings.COHORT_RAY_TEAM_ADDRESSES
    return list(dict.fromkeys(address for address in (default, *others) if address))


def address_of(team: Team) -> str:
    """Return the team's choice if the operator allows it; else the default, or ""."""
    chosen = TeamCluster.objects.filter(team=team).values_list("address", flat=True)
    address: str = chosen.first() or ""
    default: str = settings.COHORT_RAY_ADDRESS
    return address if address in allowed_addresses() else default


@transaction.atomic
def choose_address(team: Team, user: User, after: str, base: str = "") -> None:
    """Choose a cluster; empty: the default. EditConflict: another is chosen by now."""
    Team.objects.select_for_update(no_key=True).get(pk=team.pk)
    row = TeamCluster.objects.filter(team=team).first()
    before = row.address if row else ""
    if not find_changes({"address": before}, {"address": after}, base):
        return
    if after and after not in allowed_addresses():
        raise ValueError(f"Choose one of the clusters of this server; got {after!r}.")
    if after:
        TeamCluster.objects.update_or_create(team=team, defaults={"address": after})
    else:
        TeamCluster.objects.filter(team=team).delete()
    record(team, user, "team.cluster_changed", team, before=before, after=after)


def cluster_variables(run: Run) -> dict[str, str]:
    """Return variables for the trainer of a run on its team's cluster."""
    if hosts.Needs.of(run.config).ranks is None:
        return {}
    return {
        "COHORT_RAY_ADDRESS": address_of(run.team),
        "COHORT_RAY_STORAGE": settings.COHORT_RAY_STORAGE,
        **{name: os.environ[name] for name in RAY_TOKENS if name in os.environ},
    }


# As pages read it.


def read_cluster(team: Team) -> hosts.Cluster | None:
    """Two queries; one where no cluster is set up."""
    address = address_of(team)
    if not address:
        return None
    row = Cluster.objects.filter(address=address).first()
    if row is None or row.read_at is None:
        return hosts.Cluster(
            address=address,
            problem="No training worker has read this cluster yet. A worker reads it "
            "every 30 s while it runs.",
        )
    facts = row.facts
    nodes = [
        hosts.ClusterNode(
            name=str(node.get("name") or ""),
            gpu_kind=str(node.get("gpu_kind") or ""),
            num_gpus=int(node.get("gpus") or 0),
            gpus_free=float(node.get("gpus_free") or 0),
            cpus=float(node.get("cpus") or 0),
            cpus_free=float(node.get("cpus_free") or 0),
            memory_bytes=int(node.get("memory_bytes") or 0),
            is_alive=bool(node.get("is_alive", True)),
        )
        for node in facts.get("nodes") or []
    ]
    problem = str(facts.get("error") or "")
    if not problem and timezone.now() - row.read_at >= CURRENT_FOR:
        problem = "No training worker reads this cluster now. Start one."
    return hosts.Cluster(
        address=row.address,
        problem=problem,
        ray_version=str(facts.get("ray_version") or ""),
        nodes=tuple(sorted(nodes, key=lambda node: (not node.is_alive, node.name))),
        read_at=row.read_at,
        worker=row.worker,
    )


# As a worker reads it.


class _CommandRunner:
    """A runner of one command at a time, beside a worker's heartbeat."""

    _command: _Command | None = None

    def stop(self) -> None:
        if self._command is not None:
            self._command.end()
            self._command = None


class ClusterReader(_CommandRunner):
    """Reads clusters in a subprocess, one at a time, beside a worker's heartbeat.

    `tick` never waits: it starts a reading that is due, or takes its result. Each
    cluster is read at most every 30 s, by whichever worker comes first.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._address = ""

    def tick(self) -> None:
        """DatabaseError: the next call goes on."""
        if self._command is None:
            if address := _claim_due():
                self._start(address)
        elif self._command.has_ended():
            self._store(self._read(self._command))
        elif self._command.seconds > READ_SECONDS:
            self._store(_failed(f"It did not respond within {READ_SECONDS:.0f} s."))

    def _start(self, address: str) -> None:
        self._address = address
        try:
            self._command = _Command("--address", address)
        except OSError as error:
            self._store(_failed(f"The worker cannot read it: {error}."))

    def _read(self, command: _Command) -> dict[str, Any]:
        try:
            return check_facts(json.loads(command.output))
        except ValueError:
            code = command.child.returncode
            return _failed(f"The worker cannot read it: its reader exited with {code}.")

    def _store(self, facts: dict[str, Any]) -> None:
        self.stop()
        Cluster.objects.filter(address=self._address).update(
            facts=facts, read_at=Now(), worker=self._worker
        )


class StorageCleaner(_CommandRunner):
    """Deletes the folders of deleted runs in COHORT_RAY_STORAGE, in a subprocess beside
    a worker's heartbeat: only workers have its credentials and file system package.

    `tick` never waits.
    """

    _due = 0.0

    def tick(self) -> None:
        if self._command is None:
            if time.monotonic() >= self._due and _has_folders_to_delete():
                self._start()
        elif self._command.has_ended():
            self._finish(
                self._command.child.returncode,
                self._command.output.decode(errors="replace").strip(),
            )
        elif self._command.seconds > DELETE_SECONDS:
            self._finish(1, f"it took more than {DELETE_SECONDS:.0f} s")

    def _start(self) -> None:
        try:
            folder = str(stored_folders_to_delete())
            self._command = _Command(
                "--delete-stored",
                folder,
                variables={"COHORT_RAY_STORAGE": settings.COHORT_RAY_STORAGE},
            )
        except OSError as error:
            self._finish(1, str(error))

    def _finish(self, code: int, output: str) -> None:
        self.stop()
        # Without a fault another worker may be at it.
        self._due = time.monotonic() + (
            DELETE_AGAIN_SECONDS if code else DELETE_REST_SECONDS
        )
        if code:
            logger.warning(
                "Folders of deleted runs stay in COHORT_RAY_STORAGE: %s. The worker "
                "tries again in %.0f min.",
                output.rpartition("\n")[2] or f"exit status {code}",
                DELETE_AGAIN_SECONDS / 60,
            )


def _has_folders_to_delete() -> bool:
    if not settings.COHORT_RAY_STORAGE:
        return False
    with suppress(OSError):
        return any(stored_folders_to_delete().glob("run-*"))
    return False


class _Command:
    """`python -m trainer cluster` in a subprocess, with what it prints."""

    def __init__(
        self, *arguments: str, variables: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """OSError: it cannot be started."""
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._began = time.monotonic()
        try:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "trainer", "cluster", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=self._file,
                stderr=subprocess.DEVNULL,
                cwd=ROOT,
                env={**withhold(os.environ), **variables},
                start_new_session=True,
            )
        except OSError:
            self._file.close()
            raise

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def output(self) -> bytes:
        self._file.seek(0)
        return self._file.read()

    def has_ended(self) -> bool:
        return self.child.poll() is not None

    def end(self) -> None:
        if self.child.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
        self._file.close()


def _failed(problem: str) -> dict[str, Any]:
    return {"error": problem, "ray_version": None, "nodes": []}


def check_facts(reading: Any) -> dict[str, Any]:
    """Keep what is stored of a reading. ValueError: it has another form."""
    if not isinstance(reading, dict) or not isinstance(reading.get("nodes"), list):
        raise ValueError("A reading is an object with nodes.")
    error, version = reading.get("error"), reading.get("ray_version")
    try:
        nodes = [_checked_node(node) for node in reading["nodes"][:MAX_NODES]]
    except (TypeError, AttributeError, OverflowError) as fault:
        raise ValueError(str(fault)) from fault
    facts: dict[str, Any] = clean_json(
        {
            "error": str(error)[:LONGEST_PROBLEM] if error else None,
            "ray_version": str(version)[:LONGEST_NAME] if version else None,
            "nodes": nodes,
        }
    )
    return facts


def _checked_node(node: Mapping[str, Any]) -> dict[str, Any]:
    kind = node.get("gpu_kind")
    return {
        "name": str(node.get("name") or "")[:LONGEST_NAME],
        "is_alive": bool(node.get("is_alive", True)),
        "gpu_kind": str(kind)[:LONGEST_NAME] if kind else None,
        "gpus": int(node.get("gpus") or 0),
        "gpus_free": float(node.get("gpus_free") or 0),
        "cpus": float(node.get("cpus") or 0),
        "cpus_free": float(node.get("cpus_free") or 0),
        "memory_bytes": int(node.get("memory_bytes") or 0),
    }


def _claim_due() -> str:
    """Claim the cluster that was read longest ago, if that is 30 s; "" if none is due.

    One query without a cluster; two while none is due.
    """
    default: str = settings.COHORT_RAY_ADDRESS
    others = settings.COHORT_RAY_TEAM_ADDRESSES
    if not (default or others):
        return ""
    chosen = TeamCluster.objects.filter(address__in=others)
    addresses = {*chosen.values_list("address", flat=True), default} - {""}
    clusters = Cluster.objects.filter(address__in=addresses)
    if missing := addresses - {*clusters.values_list("address", flat=True)}:
        Cluster.objects.bulk_create(
            [Cluster(address=address) for address in missing], ignore_conflicts=True
        )
    due = Q(claimed_at=None) | Q(claimed_at__lt=Now() - READ_EVERY)
    for address in (
        Cluster.objects.filter(due, address__in=addresses)
        .order_by("claimed_at")
        .values_list("address", flat=True)
    ):
        # Guarded: another worker may have come first.
        if Cluster.objects.filter(due, address=address).update(claimed_at=Now()):
            return address
    return ""
