"""How a queued run is made known to the workers."""

from __future__ import annotations

from dashboard.waking import wake


def ring_workers() -> None:
    """Wake a training worker. Best effort: the dispatcher rings again every 5 s."""
    wake("training.work", queue="training", expires=3_600)
