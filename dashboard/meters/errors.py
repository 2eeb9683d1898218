"""Keeps the last errors of all processes for the operators' page."""

from __future__ import annotations

import json
import logging

from dashboard.logs.lines import JsonLine
from dashboard.meters.shared import keep_error

MAX_CHARS = 4_000  # of a traceback, whose end says most


class KeepErrors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._lines = JsonLine()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields = self._lines.as_fields(record)
            fields = {
                name: value[-MAX_CHARS:] if isinstance(value, str) else value
                for name, value in fields.items()
            }
            keep_error(json.dumps(fields, default=str))
        except Exception:  # noqa: BLE001 - whoever logs must not fail by it
            self.handleError(record)
