"""Log records as JSON, one object a line: both halves of Cohort write the same."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

LOG_FORMATS = ("text", "json")
# What a pipe takes in one piece, so that lines of several processes never mix.
MAX_LINE_BYTES = 4096
_CUT = "… (the rest stands in trainer.log) "


class JsonLines(logging.Formatter):
    """Time, level, logger, message, process, what is known of the work, exception.

    >>> {"time": "2026-01-02T03:04:05.678Z", "level": "info", "logger": "trainer",
    ...  "message": "finished", "process": "trainer", "pid": 7, "run": 3, "step": 40}
    """

    def __init__(
        self, *, process: str, read_facts: Callable[[], Mapping[str, object]] = dict
    ) -> None:
        super().__init__()
        self._process = process
        self._read_facts = read_facts

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.as_fields(record), default=str)

    def as_fields(self, record: logging.LogRecord) -> dict[str, object]:
        time = datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None)
        fields: dict[str, object] = {
            "time": f"{time.isoformat(timespec='milliseconds')}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": self._process,
            "pid": record.process,
            **self._read_facts(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = record.stack_info
        return fields


class ShortJsonLines(JsonLines):
    """No line is longer than a pipe takes at once; what is too long keeps its end."""

    def format(self, record: logging.LogRecord) -> str:
        fields = self.as_fields(record)
        for name in ("exception", "stack", "message"):
            spare = MAX_LINE_BYTES - 1 - len(json.dumps(fields, default=str))
            if spare < 0 and name in fields:
                fields[name] = _shorten(str(fields[name]), by=-spare)
        return json.dumps(fields, default=str)


def _shorten(text: str, *, by: int) -> str:
    """At least so many bytes of JSON less, from the beginning."""
    goal = len(json.dumps(text)) - by - len(json.dumps(_CUT))
    kept = text
    while kept and len(json.dumps(kept)) > goal:
        kept = kept[len(kept) // 10 + 1 :]
    return _CUT + kept
