"""A rescoring on a default worker: claimed, scored step by step, and ended."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from django.db import OperationalError, transaction
from django.db.models import F, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce, Now

from dashboard.rescoring.cleaning import folder_of, sweep_folders
from dashboard.rescoring.models import HELD, RescoredStep, Rescoring, State
from dashboard.rescoring.pulse import Pulse
from dashboard.rescoring.scoring import Refused, rescore_step
from dashboard.rescoring.settings import StepSettings, asking_rules
from dashboard.rescoring.summary import summarize
from dashboard.rescoring.timing import LEASE, TURN_SECONDS
from dashboard.rewards.sandboxes import sandbox_here
from dashboard.samples.cleaning import clean_text
from trainer.rewards.session import open_session
from trainer.rewards.spec import check_rules, needs_sandbox
from trainer.rewards.workers import GroupScorer, ScoringFailed


@dataclass(frozen=True, slots=True)
class Claim:
    rescoring_id: int
    token: uuid.UUID

    @property
    def row(self) -> QuerySet[Rescoring]:
        """The rescoring, as long as it is ours."""
        return Rescoring.objects.filter(
            pk=self.rescoring_id, claim=self.token, state__in=HELD
        )

    def end(self, state: State, *, error: str = "") -> None:
        self.row.update(
            state=state, claim=None, error=clean_text(error), finished_at=Now()
        )

    def put_back(self) -> None:
        """For another worker, or this one when it is back: steps that are done stay."""
        self.row.filter(state=State.RUNNING).update(
            state=State.QUEUED, worker="", claim=None, lease_until=None
        )
        self.end(State.STOPPED)


class Lost(Exception):
    """Another process has the rescoring, or ended it."""


def claim_next(worker: str) -> Claim | None:
    """Take the oldest of the team that was served longest ago; None: none waits."""
    served = (
        Rescoring.objects.filter(team=OuterRef("team"), served_at__isnull=False)
        .order_by("-served_at")
        .values("served_at")[:1]
    )
    waiting = Rescoring.objects.filter(state=State.QUEUED).annotate(
        team_served_at=Subquery(served)
    )
    order = F("team_served_at").asc(nulls_first=True)
    for pk in waiting.order_by(order, "pk").values_list("pk", flat=True)[:10]:
        claim = Claim(pk, uuid.uuid4())
        # Guarded: another worker may have been first.
        if Rescoring.objects.filter(pk=pk, state=State.QUEUED).update(
            state=State.RUNNING,
            worker=worker,
            claim=claim.token,
            lease_until=Now() + LEASE,
            served_at=Now(),
            started_at=Coalesce("started_at", Now()),
        ):
            return claim
    return None


def work_on(
    claim: Claim,
    *,
    is_shutting_down: Callable[[], bool],
    turn_seconds: float = TURN_SECONDS,
    beats: bool = True,
) -> None:
    """Score what is not scored yet, for a turn at least, and write down the end."""
    try:
        rescoring = Rescoring.objects.select_related(
            "run__dataset_version__dataset"
        ).get(pk=claim.rescoring_id)
        work = _Work(claim, rescoring, is_shutting_down, turn_seconds)
        if work.see_through(beats=beats):
            _conclude(claim, rescoring)
    except Lost:
        return
    except OperationalError:
        # The lease runs out where the database is away still, and it is taken again.
        claim.put_back()
        raise
    except (Refused, ScoringFailed, ValueError) as error:
        claim.end(State.FAILED, error=str(error))
    except Exception:
        claim.end(
            State.FAILED,
            error="It ended by a fault of Cohort's own, which the log of the default "
            "worker tells of. What was scored until then is kept.",
        )
        raise


def _conclude(claim: Claim, rescoring: Rescoring) -> None:
    result = summarize(rescoring)
    is_whole = rescoring.scored.count() == len(rescoring.steps)
    claim.row.update(result=result)
    claim.end(State.FINISHED if is_whole else State.STOPPED)


class _Work:
    """One turn at a rescoring."""

    def __init__(
        self,
        claim: Claim,
        rescoring: Rescoring,
        is_shutting_down: Callable[[], bool],
        turn_seconds: float,
    ) -> None:
        self._claim = claim
        self._rescoring = rescoring
        self._is_shutting_down = is_shutting_down
        self._turn_ends = time.monotonic() + turn_seconds
        self._settings = StepSettings(rescoring.run.config, rescoring.spec)

    def see_through(self, *, beats: bool) -> bool:
        """False where it goes on another time."""
        with self._session(), _closing(GroupScorer(1)) as scorer:
            self._check_rules()
            held = partial(_row_of, self._claim)
            with Pulse(held, on_end=scorer.close, beats=beats) as pulse:
                try:
                    return self._score_all(scorer, pulse)
                except (ScoringFailed, CancelledError, RuntimeError):
                    # The pulse took the scorer away.
                    if pulse.is_lost:
                        raise Lost from None
                    if not pulse.is_stopping:
                        raise
                    return True

    @contextmanager
    def _session(self) -> Iterator[None]:
        """Judges' replies are kept until the end, so that none is asked for twice."""
        sweep_folders()
        asks = any(asking_rules(recipe) for recipe in self._settings.recipes())
        folder: Path | None = None
        if asks:
            folder = folder_of(self._rescoring.pk)
            folder.mkdir(parents=True, exist_ok=True)
        with open_session(folder):
            yield

    def _check_rules(self) -> None:
        for recipe in self._settings.recipes():
            check_rules(recipe)
            if needs_sandbox(recipe) and (problem := sandbox_here().problem):
                raise Refused(problem)

    def _score_all(self, scorer: GroupScorer, pulse: Pulse) -> bool:
        scored = self._rescoring.scored
        is_done = set(scored.values_list("step", flat=True))
        num_done = scored.aggregate(sum=Sum("num_completions"))["sum"] or 0
        for step in self._rescoring.steps:
            if step in is_done:
                continue
            if self._is_shutting_down() or self._gives_way():
                self._claim.put_back()
                return False
            pulse.num_done = num_done
            found = rescore_step(
                self._rescoring,
                step,
                self._settings.at(step),
                scorer,
                on_scored=lambda count: _add(pulse, count),
            )
            num_done += found.num_completions
            self._store(found, num_done)
        return True

    def _gives_way(self) -> bool:
        """Whether another team's waits, and this one has had its turn."""
        if time.monotonic() < self._turn_ends:
            return False
        queued = Rescoring.objects.filter(state=State.QUEUED)
        return queued.exclude(team=self._rescoring.team_id).exists()

    def _store(self, found: RescoredStep, num_done: int) -> None:
        """The step is there, and counted, at once; and once."""
        with transaction.atomic():
            if not self._claim.row.update(num_done=num_done, num_losses=0):
                raise Lost
            found.save()


def _row_of(claim: Claim) -> QuerySet[Rescoring]:
    return claim.row


def _add(pulse: Pulse, count: int) -> None:
    pulse.num_done += count


@contextmanager
def _closing(scorer: GroupScorer) -> Iterator[GroupScorer]:
    try:
        yield scorer
    finally:
        scorer.close()
