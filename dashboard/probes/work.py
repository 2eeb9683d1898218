"""A probe on a training worker: its trainer is started, followed, and ended."""

from __future__ import annotations

import json
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db.models import QuerySet
from django.db.models.functions import Now

from dashboard.datasets.row import Row, write_content
from dashboard.probes.cleaning import probes_folder, sweep_folders
from dashboard.probes.models import HELD, Probe, ProbeGroup, ProbeState
from dashboard.runs.checkpoints.shelf import FilesGone, Shelf, gone
from dashboard.runs.models import Checkpoint
from dashboard.samples.cleaning import clean_json, clean_text
from dashboard.training.follow import LogFollower
from dashboard.training.process import TrainerProcess
from dashboard.training.tail import read_tail

LEASE = timedelta(seconds=60)
RENEW_SECONDS = 10.0
POLL_SECONDS = 0.1
LOOK_SECONDS = 0.5  # for a request to stop
GRACE_SECONDS = 30.0  # to say what was found until then
TAIL_LINES = 6
STOPPED_CODE = 3


@dataclass(frozen=True, slots=True)
class Claim:
    probe_id: int
    token: uuid.UUID

    @property
    def row(self) -> QuerySet[Probe]:
        """The probe, as long as it is ours."""
        return Probe.objects.filter(pk=self.probe_id, claim=self.token, state__in=HELD)


class Lost(Exception):
    """Another process ended the probe."""


def claim_next(worker: str) -> Claim | None:
    """Take the oldest queued probe; None when there is none."""
    waiting = Probe.objects.filter(state=ProbeState.QUEUED).order_by("id")
    for pk in waiting.values_list("pk", flat=True)[:10]:
        claim = Claim(pk, uuid.uuid4())
        # Guarded: another worker may have been first.
        if Probe.objects.filter(pk=pk, state=ProbeState.QUEUED).update(
            state=ProbeState.RUNNING,
            worker=worker,
            claim=claim.token,
            lease_until=Now() + LEASE,
            started_at=Now(),
        ):
            return claim
    return None


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
    found = Shelf(checkpoint.run_id).find(checkpoint.name)
    if found is None:
        raise FilesGone(gone(checkpoint.name))
    return found


def work_on(
    claim: Claim,
    *,
    is_shutting_down: Callable[[], bool],
    command: Callable[[Probe, Path], list[str]] = probe_command,
) -> None:
    """Hold the probe until its trainer's end, whatever that is."""
    related = Probe.objects.select_related("dataset_version__dataset", "checkpoint")
    probe = related.get(pk=claim.probe_id)
    sweep_folders()
    folder = probe_folder(probe.pk)
    try:
        freeze(probe, folder)
        started = command(probe, folder)
    except FilesGone as error:
        _end(claim, ProbeState.FAILED, error=str(error))
        return
    except OSError as error:
        _end(claim, ProbeState.FAILED, error=f"Its files cannot be written: {error}.")
        return
    work = Work(claim, probe, folder, is_shutting_down)
    try:
        work.see_through(started)
    except Lost:
        return


def freeze(probe: Probe, folder: Path) -> None:
    """Write the configuration and the rows, in a fresh folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = probe.dataset_version.rows.filter(position__in=probe.positions)
    found = (row.as_row() for row in rows.order_by("position"))
    typed = [Row(prompt=probe.prompt)]
    with (folder / "rows.jsonl").open("wb") as file:
        write_content(typed if probe.prompt else found, file)
    tree = {**probe.config, "data": {**probe.config["data"], "rows": "rows.jsonl"}}
    (folder / "probe.json").write_text(json.dumps(tree), encoding="utf-8")


class Work:
    """A trainer that probes, and what it says."""

    def __init__(
        self,
        claim: Claim,
        probe: Probe,
        folder: Path,
        is_shutting_down: Callable[[], bool],
    ) -> None:
        self._claim = claim
        self._positions = probe.positions or [0]  # of a typed prompt
        self._folder = folder
        self._is_shutting_down = is_shutting_down
        self._follower = LogFollower(folder / "probe.jsonl")
        self._error = ""
        self._asked_at: float | None = None
        self._looked_at = self._renewed_at = time.monotonic()

    def see_through(self, command: list[str]) -> None:
        log = self._folder / "trainer.log"
        with TrainerProcess(command, log=log) as trainer:
            while True:
                # Asked before reading, so that its last words are in what is read.
                has_exited = trainer.has_exited()
                num_lines = self._store()
                if has_exited and not num_lines:
                    break
                if self._is_shutting_down():
                    self._put_back()
                    return
                self._heed(trainer)
                trainer.cap_log()
                time.sleep(POLL_SECONDS)
            status = trainer.reap()
        self._conclude(status, log)

    def _store(self) -> int:
        lines = self._follower.read()
        messages = list(_read(lines.texts))
        if messages:
            self._take(messages)
        if lines:
            self._follower.advance(lines)
        return len(lines.texts)

    def _take(self, messages: list[dict[str, Any]]) -> None:
        """One UPDATE of the probe, and its groups, for however many lines came."""
        changes: dict[str, Any] = {"lease_until": Now() + LEASE}
        groups = []
        for message in messages:
            match message["type"]:
                case "phase":
                    changes["phase"] = message["name"]
                case "progress":
                    changes["num_done"] = message["done"]
                case "measured":
                    changes["metrics"] = message["metrics"]
                case "failed":
                    self._error = message["error"]
                case "group":
                    groups.append(self._group(message))
        if not self._claim.row.update(**changes):
            raise Lost
        ProbeGroup.objects.bulk_create(groups, ignore_conflicts=True)

    def _group(self, message: dict[str, Any]) -> ProbeGroup:
        return ProbeGroup(
            probe_id=self._claim.probe_id,
            position=self._positions[message["row"]],
            is_base=message.get("is_base", False),
            completions=message["completions"],
        )

    def _heed(self, trainer: TrainerProcess) -> None:
        now = time.monotonic()
        if now - self._renewed_at >= RENEW_SECONDS:
            self._renewed_at = now
            if not self._claim.row.update(lease_until=Now() + LEASE):
                raise Lost
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            state = self._claim.row.values_list("state", flat=True).first()
            if state is None:
                raise Lost
            if state == ProbeState.STOPPING and self._asked_at is None:
                self._asked_at = now
                trainer.ask_to_stop()
        if self._asked_at is not None and now - self._asked_at > GRACE_SECONDS:
            trainer.kill()

    def _put_back(self) -> None:
        """For another worker, or this one when it is back: nothing was lost yet."""
        ProbeGroup.objects.filter(probe_id=self._claim.probe_id).delete()
        self._claim.row.filter(state=ProbeState.RUNNING).update(
            state=ProbeState.QUEUED,
            worker="",
            claim=None,
            lease_until=None,
            phase="",
            num_done=0,
        )
        _end(self._claim, ProbeState.STOPPED)

    def _conclude(self, status: int, log: Path) -> None:
        if status == 0:
            _end(self._claim, ProbeState.FINISHED)
        elif status == STOPPED_CODE or self._asked_at is not None:
            _end(self._claim, ProbeState.STOPPED)
        else:
            _end(
                self._claim,
                ProbeState.FAILED,
                error=self._error or _last_words(status, log),
            )


def _end(claim: Claim, state: ProbeState, *, error: str = "") -> None:
    claim.row.update(state=state, error=clean_text(error), phase="", finished_at=Now())


def _read(lines: tuple[bytes, ...]) -> Iterator[dict[str, Any]]:
    for line in lines:
        yield clean_json(json.loads(line))


def _last_words(status: int, log: Path) -> str:
    how = f"by signal {-status}" if status < 0 else f"with exit code {status}"
    tail = read_tail(log, max_lines=TAIL_LINES).text.strip()
    said = f" It said last: {tail}" if tail else ""
    return f"The trainer ended {how} and gave no reason.{said}"
