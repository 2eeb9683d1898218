"""How a queued run, or one to be deleted, is made known to the workers."""

from __future__ import annotations

from dashboard.jobs.schedule import DAY_SECONDS, wake


def ring_workers() -> None:
    """Wake a training worker. Best effort: the dispatcher rings again every 5 s."""
    wake("training.work", queue="training", expires=DAY_SECONDS)


def ring_deletion() -> None:
    """Wake a default worker. Best effort: beat rings every 10 s."""
    wake("runs.delete_rows", queue="default", expires=DAY_SECONDS)
