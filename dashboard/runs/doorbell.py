"""How a queued run is made known to the workers."""

from __future__ import annotations

import logging

from celery import Celery
from django.conf import settings
from kombu.exceptions import OperationalError

logger = logging.getLogger(__name__)


def ring_workers() -> None:
    """Wake a training worker. Best effort: the dispatcher rings again every 5 s."""
    try:
        # The web process has no Celery app of its own; it only puts a message down.
        with Celery(broker=settings.CELERY_BROKER_URL, set_as_current=False) as app:
            app.send_task("training.work", queue="training", expires=3_600, retry=False)
    except OperationalError as error:
        logger.warning("Could not ring the training workers: %s", error)
