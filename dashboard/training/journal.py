"""What a supervisor did in one life of a trainer, for the run's log page."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

logger = logging.getLogger(__name__)


class Journal:
    """Lines with their time; a full disk never stops the supervisor."""

    def __init__(self, path: Path, *, about: str) -> None:
        self.path = path
        self.about = about

    def write(self, message: str) -> None:
        logger.info("%s: %s", self.about, message)
        now = datetime.now(UTC).replace(tzinfo=None)
        line = f"{now.isoformat(sep=' ', timespec='milliseconds')} {message}\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            logger.warning("%s: could not write %s: %s", self.about, self.path, error)
