"""The trainer's log: lines of text, and with COHORT_LOG_FORMAT=json also JSON.

Text goes to stdout, which the log page shows. JSON goes to the file descriptor in
COHORT_LOG_FD (a worker passes its stderr), else to stderr; each line has the fields of
COHORT_REQUEST_ID, COHORT_TEAM, COHORT_RUN_ID and COHORT_RUN_ATTEMPT.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from trainer.disk import ignore_full_disk

LOG_FORMATS = ("text", "json")
# What a pipe takes in one piece, so that lines of several processes never mix.
MAX_LINE_BYTES = 4096
_CUT = "… (full text in trainer.log) "


class JsonLines(logging.Formatter):
    """Time, level, logger, message, process, the run and its step, exception.

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
    """Cut at least so many bytes of JSON from the beginning."""
    goal = len(json.dumps(text)) - by - len(json.dumps(_CUT))
    tail = text
    while tail and len(json.dumps(tail)) > goal:
        tail = tail[len(tail) // 10 + 1 :]
    return _CUT + tail


FORMAT = "COHORT_LOG_FORMAT"
DESCRIPTOR = "COHORT_LOG_FD"
FACTS = {
    "request_id": "COHORT_REQUEST_ID",
    "team": "COHORT_TEAM",
    "run": "COHORT_RUN_ID",
    "attempt": "COHORT_RUN_ATTEMPT",
}
NUMBERS = ("run", "attempt")
logger = logging.getLogger("trainer")
_step: list[int] = [0]


def print_line(text: str) -> None:
    """Write a line to stdout and to the log."""
    with ignore_full_disk():
        # Half a character, which a message may quote, is no UTF-8.
        sys.stdout.write(text.encode("utf-8", "replace").decode() + "\n")
        sys.stdout.flush()
    logger.info("%s", text)


def print_error(text: str) -> None:
    """Write a line to stderr."""
    with ignore_full_disk():
        sys.stderr.write(text + "\n")


def print_traceback(error: BaseException) -> None:
    """Write the traceback to stderr and to the log."""
    with ignore_full_disk():
        traceback.print_exception(error)
    logger.error("%s", f"{type(error).__name__}: {error}", exc_info=error)


def note_step(step: int) -> None:
    """Set the step of all later JSON lines."""
    _step[0] = step


def open_json_log(environment: Mapping[str, str] = os.environ) -> None:
    """Start the JSON log if COHORT_LOG_FORMAT is json; ValueError if it is unknown.

    Libraries' warnings go there too; what Python shows itself is still shown.
    """
    logger.propagate = False
    # Else Python itself would write faults once more, having no other place for them.
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    chosen = environment.get(FORMAT) or "text"
    if chosen not in LOG_FORMATS:
        raise ValueError(
            f"{FORMAT} must be one of {', '.join(LOG_FORMATS)}; got {chosen!r}."
        )
    if chosen != "json" or any(isinstance(h, JsonLog) for h in logger.handlers):
        return
    [target] = log_descriptors(environment) or (2,)
    log = JsonLog(target, facts_of(environment))
    logger.addHandler(log)
    logger.setLevel(logging.INFO)
    root = logging.getLogger()
    if not root.handlers:  # what lastResort did is done on
        handler = logging.StreamHandler(sys.stderr)
        handler.setLevel(logging.WARNING)
        root.addHandler(handler)
    root.addHandler(log)


def log_descriptors(environment: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """Descriptor of COHORT_LOG_FD, to pass on to a child process."""
    descriptor = environment.get(DESCRIPTOR, "")
    return (int(descriptor),) if descriptor.isdigit() and _is_open(descriptor) else ()


def facts_of(environment: Mapping[str, str]) -> dict[str, object]:
    facts = {name: environment.get(key, "") for name, key in FACTS.items()}
    return {
        name: int(value) if name in NUMBERS and value.isdigit() else value
        for name, value in facts.items()
        if value
    }


class JsonLog(logging.Handler):
    """Drops lines that would block: training never waits for the reader."""

    def __init__(self, descriptor: int, facts: Mapping[str, object]) -> None:
        super().__init__()
        self._descriptor = descriptor
        rank = int(os.environ.get("RANK") or 0)
        # Of several processes only the first logs info; each logs its warnings.
        self.setLevel(logging.WARNING if rank else logging.INFO)
        fields = {**facts, **({"rank": rank} if rank else {})}
        self.setFormatter(
            ShortJsonLines(
                process="trainer", read_facts=lambda: {**fields, "step": _step[0]}
            )
        )

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record).encode() + b"\n"
        with contextlib.suppress(OSError):  # the reader has closed it
            # A writable pipe accepts a whole line; files always do.
            poll = select.poll()
            poll.register(self._descriptor, select.POLLOUT)
            if poll.poll(0):
                os.write(self._descriptor, line)


def _is_open(descriptor: str) -> bool:
    try:
        os.fstat(int(descriptor))
    except OSError:
        return False
    return True
