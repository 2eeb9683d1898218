"""How a line of the log looks: text for a terminal, JSON for programs."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import PurePath
from types import TracebackType
from typing import Any

from dashboard.logs.facts import current_facts
from dashboard.quiet_log import quieten
from trainer.console import JsonLines

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
logger = logging.getLogger("dashboard")


class TextLine(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(TEXT)

    def format(self, record: logging.LogRecord) -> str:
        return quieten(super().format(record))


class JsonLine(JsonLines):
    """With what the line's work is about, see facts.py."""

    def __init__(self) -> None:
        super().__init__(process=process_name(sys.argv), read_facts=current_facts)

    def as_fields(self, record: logging.LogRecord) -> dict[str, object]:
        fields = super().as_fields(record)
        texts = {n: quieten(v) for n, v in fields.items() if isinstance(v, str)}
        return {**fields, **texts}


def process_name(argv: list[str]) -> str:
    """
    >>> process_name(["celery", "worker", "--hostname", "training@%h"])
    "training worker"
    """
    path = PurePath(argv[0])
    name = path.parent.name if path.name == "__main__.py" else path.name
    if name == "uvicorn":
        return "web"
    if name == "celery" and "beat" in argv:
        return "beat"
    if name == "celery" and "worker" in argv:
        host = argv[argv.index("--hostname") + 1] if "--hostname" in argv else ""
        return f"{host.partition('@')[0]} worker".strip()
    return " ".join([name, *argv[1:2]]) if name == "manage.py" else name


def log_uncaught() -> None:
    """What ends a process or a thread is one line too, as are Python's warnings."""
    logging.captureWarnings(capture=True)

    def report(
        kind: type[BaseException],
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or issubclass(kind, KeyboardInterrupt):
            return
        logger.critical("%s: %s", kind.__name__, error, exc_info=(kind, error, trace))

    def report_thread(told: Any) -> None:
        if told.exc_type is not SystemExit:
            report(told.exc_type, told.exc_value, told.exc_traceback)

    sys.excepthook = report
    threading.excepthook = report_thread
