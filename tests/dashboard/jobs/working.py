"""What a worker does, within a test's own transaction: no heartbeat sees its jobs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dashboard.jobs import kinds
from dashboard.jobs.kinds import Claim, Context, all_kinds, kind_of
from dashboard.jobs.models import Job, JobState
from dashboard.jobs.queue import claim_next
from dashboard.jobs.runner import Heartbeat, run

WORKER = "default@here"


def take(*names: str, worker: str = WORKER) -> Claim:
    """The next job, of these kinds or of any."""
    claim = claim_next(names or [kind.name for kind in all_kinds()], worker)
    assert claim, "no job waits"
    return claim


def do(
    claim: Claim,
    *,
    on_progress: Callable[[Context], None] | None = None,
    is_shutting_down: Callable[[], bool] = bool,
) -> Job:
    """Do a claimed job; `on_progress` is called with each progress."""
    context = Context(claim, is_shutting_down=is_shutting_down)
    if on_progress:
        context.check = lambda: on_progress(context)  # type: ignore[method-assign]  # for this job
    run(context, beats=False)
    return Job.objects.get(pk=claim.job_id)


def do_all(*names: str, worker: str = WORKER) -> list[Job]:
    """Do what waits; the jobs in the order in which they were done."""
    names = names or tuple(kind.name for kind in all_kinds())
    done = []
    while claim := claim_next(names, worker):
        done.append(do(claim))
    return done


def waiting() -> list[tuple[str, int]]:
    """The kinds and targets of queued jobs, the oldest first."""
    queued = Job.objects.filter(state=JobState.QUEUED).order_by("pk")
    return list(queued.values_list("kind", "target_id"))


def change_kind(monkeypatch: pytest.MonkeyPatch, name: str, **changes: Any) -> None:
    monkeypatch.setitem(kinds._kinds, name, replace(kind_of(name), **changes))


def target_of(claim: Claim) -> int:
    return Job.objects.values_list("target_id", flat=True).get(pk=claim.job_id)


def report_progress(context: Context) -> None:
    """As the heartbeat's thread does each second."""
    Heartbeat(context)._send()
    if context.interruption:
        raise context.interruption
