"""The training workers as one team may see them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from django.db.models.functions import Now

from dashboard.accounts.models import Team
from dashboard.runs.models import HELD, Epoch, Run
from dashboard.runs.queue.hosts import CLASSES
from dashboard.training.models import Worker
from dashboard.training.workers import GONE_AFTER

MAX_RECENT = 5
MAX_LIVES = 500  # looked through for what each worker ran last
ORDER = {"busy": 0, "idle": 1, "gone": 2, "stopped": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCard:
    worker: Worker
    runs: list[Run]  # this team's
    num_foreign_runs: int  # another team's, not named
    status: str  # idle | busy | stopped | gone
    drained_by: str  # a member of this team, else ""
    recent: list[Epoch] = field(default_factory=list)  # this team's, newest first

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
        """Each with its name, its memory and, when it is known, what is used of it."""
        used = self.worker.use.get("gpus", []) if self.is_there else []
        known = self.worker.hardware.get("gpus", [])
        uses = [*used, *[{}] * len(known)]
        return [{**gpu, "use": use} for gpu, use in zip(known, uses, strict=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many there are, of those that are alive."""

    workers: int
    busy: int
    drained: int
    gpus: int


def describe_workers(workers: Iterable[Worker], *, team: Team) -> list[WorkerCard]:
    """Five queries, however many workers there are."""
    workers = list(workers)
    held = list(Run.objects.filter(state__in=HELD).order_by("id"))
    lives = list(
        Epoch.objects.filter(run__team=team, worker__in=[w.name for w in workers])
        .select_related("run")
        .order_by("-claimed_at", "-id")[:MAX_LIVES]
    )
    members = {m.pk: str(m) for m in team.members.all()}
    silent = set(_silent(workers))
    cards = [_describe(one, held, lives, members, team, silent) for one in workers]
    return sorted(cards, key=lambda card: (ORDER[card.status], card.worker.name))


def count_workers(cards: Iterable[WorkerCard]) -> Count:
    alive = [card for card in cards if card.is_there]
    return Count(
        workers=len(alive),
        busy=sum(card.status == "busy" for card in alive),
        drained=sum(card.worker.drained_at is not None for card in alive),
        gpus=sum(len(card.gpus) for card in alive),
    )


def _describe(
    worker: Worker,
    held: list[Run],
    lives: list[Epoch],
    members: dict[int, str],
    team: Team,
    silent: set[int],
) -> WorkerCard:
    runs = [run for run in held if run.worker == worker.name]
    own = [run for run in runs if run.team_id == team.id]
    ended = [life for life in lives if life.worker == worker.name and life.ended_at]
    return WorkerCard(
        worker=worker,
        runs=own,
        num_foreign_runs=len(runs) - len(own),
        status=_status(worker, is_busy=bool(runs), is_silent=worker.pk in silent),
        drained_by=members.get(worker.drained_by_id or 0, ""),
        recent=ended[:MAX_RECENT],
    )


def _silent(workers: Iterable[Worker]) -> Iterable[int]:
    """By the database's clock, which wrote when they were heard."""
    late = Worker.objects.filter(last_seen__lt=Now() - GONE_AFTER)
    return late.filter(pk__in=[one.pk for one in workers]).values_list("pk", flat=True)


def _status(worker: Worker, *, is_busy: bool, is_silent: bool) -> str:
    if worker.stopped_at is not None:
        return "stopped"
    if is_silent:
        return "gone"
    return "busy" if is_busy else "idle"
