"""Runs that paused as their disk was full go on when there is room."""

from __future__ import annotations

import shutil

from django.db import transaction
from django.db.models import Q

from dashboard.runs.models import Run, RunEvent, RunState
from dashboard.runs.queries import run_directory
from dashboard.runs.state import ring_workers, transition
from dashboard.training.ending import ROOM_REMEDY


def resume_where_there_is_room() -> list[int]:
    """Queue those whose files are here and now have the room they said; their ids.

    None that somebody wanted paused besides.
    """
    paused = Run.objects.filter(
        state=RunState.PAUSED, origin={}, pause_reason__endswith=ROOM_REMEDY
    ).only("id", "epoch")
    return [run.id for run in paused if _has_room(run) and _resume(run)]


def _has_room(run: Run) -> bool:
    folder = run_directory(run.id).path
    needs = _bytes_needed(run)
    if needs is None or not folder.is_dir():
        return False
    return shutil.disk_usage(folder).free >= needs


def _bytes_needed(run: Run) -> int | None:
    """None where it is not for the disk that it paused."""
    last_word = RunEvent.objects.filter(
        run_id=run.id, epoch=run.epoch, type="run_paused"
    )
    body = last_word.order_by("-line").values_list("body", flat=True).first()
    return body.get("needs_bytes") if body else None


def _resume(run: Run) -> bool:
    with transaction.atomic():
        is_queued = transition(
            run.id,
            sources=[RunState.PAUSED],
            target=RunState.QUEUED,
            when=Q(epoch=run.epoch),
            detail={"why": "there is room on the disk again"},
            pause_reason="",
            attempt=0,
            not_before=None,
        )
        if is_queued:
            transaction.on_commit(ring_workers)
    return is_queued
