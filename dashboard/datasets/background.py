"""Ringing the workers for what would keep a page waiting."""

from __future__ import annotations

import logging

from celery import Celery
from django.conf import settings
from kombu.exceptions import OperationalError

logger = logging.getLogger(__name__)


def send_task(name: str, *args: int) -> None:
    """Best effort: what waits for the task asks for it again when it stays away."""
    try:
        # The web process has no Celery app of its own; it only puts a message down.
        with Celery(broker=settings.CELERY_BROKER_URL, set_as_current=False) as app:
            app.send_task(name, args=args, queue="default", expires=3_600, retry=False)
    except OperationalError as error:
        logger.warning("Could not ring the workers for %s: %s", name, error)
