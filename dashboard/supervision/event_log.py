"""An attempt's log files: new event lines as events, the supervisor's log, tails."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from dashboard.project.database import clean_text
from trainer.events import Event, UnknownEvent, Warned, parse_event

logger = logging.getLogger(__name__)
BATCH_BYTES = 4 * 1024 * 1024
MAX_SHOWN = 200
MAX_FIELDS = 5  # named of a line; a group may have a thousand completions
MAX_TAIL_BYTES = 1024 * 1024
SHOWN_LINES = 20  # after a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Consecutive lines of a log; the first has number `first`."""

    first: int
    texts: tuple[bytes, ...]
    end: int  # byte offset after the last one

    def __bool__(self) -> bool:
        return bool(self.texts)

    @property
    def last(self) -> int:
        return self.first + len(self.texts) - 1


class LogTailer:
    """Position in one attempt's log.

    `read` does not move it; `advance` does, once the lines are stored. So a batch that
    failed to be stored is read again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._next_line = 1

    def read(self, *, max_bytes: int = BATCH_BYTES) -> Lines:
        data = b""
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(max_bytes)
            # A line longer than the batch: read on to its end.
            while b"\n" not in data and (more := file.read(max_bytes)):
                data += more
        data = data[: data.rfind(b"\n") + 1]
        # Only \n ends a line: JSON text may contain U+2028 and similar characters.
        return Lines(
            first=self._next_line,
            texts=tuple(data.split(b"\n")[:-1]),
            end=self._offset + len(data),
        )

    def advance(self, lines: Lines) -> None:
        assert lines.first == self._next_line, "lines of another place"
        self._offset = lines.end
        self._next_line = lines.last + 1


def read_events(lines: Lines, *, attempt: int) -> list[Event]:
    """Read one event per line: an unreadable line becomes a warning, and so does an
    event type that only a newer trainer knows.

    So line numbers have no gaps, and the page shows what is missing.
    """
    return [
        _read(text, line=lines.first + index, attempt=attempt)
        for index, text in enumerate(lines.texts)
    ]


def _read(text: bytes, *, line: int, attempt: int) -> Event:
    try:
        event = parse_event(text)
        if (event.line, event.attempt) != (line, attempt):
            raise ValueError(
                f"It is numbered line {event.line} of attempt {event.attempt}; "
                f"expected line {line} of attempt {attempt}."
            )
        if not _is_time(event.time):
            raise ValueError(f"Its time, {event.time}, is not a valid timestamp.")
    except UnknownEvent as unknown:
        return Warned(
            line=line,
            attempt=attempt,
            time=unknown.time if _is_time(unknown.time) else time.time(),
            step=unknown.step,
            code="unknown_event",
            message=f"Cohort skipped line {line} of the event log: {unknown} Update "
            "Cohort: a newer trainer wrote it.",
        )
    except ValueError as error:
        beginning = text[:MAX_SHOWN].decode("utf-8", "replace")
        return Warned(
            line=line,
            attempt=attempt,
            time=time.time(),
            step=0,
            code="unreadable_line",
            message=f"Cohort skipped line {line} of the event log: {_why(error)} The "
            f"line begins with {beginning!r}.",
        )
    return event


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and 0 <= seconds < 1e11


def _why(error: ValueError) -> str:
    """List each field that pydantic refused, what is wrong, and the value."""
    if not isinstance(error, ValidationError):
        return str(error)[:MAX_SHOWN]
    details = error.errors(include_url=False)
    sentences = []
    for detail in details[:MAX_FIELDS]:
        _, *place = map(str, detail["loc"] or ("", "the line"))
        problem = f"{'.'.join(place) or 'type'}: {detail['msg']}"
        if detail["type"] != "missing":
            problem += f"; got {ascii(detail['input'])[:60]}"
        sentences.append(problem)
    if len(details) > MAX_FIELDS:
        sentences.append(f"{len(details) - MAX_FIELDS:,} more errors")
    return " ".join(f"{sentence}." for sentence in sentences)


class SupervisorLog:
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
            logger.warning("%s: failed to write %s: %s", self.about, self.path, error)


# The end of any log file.


def read_tail(path: Path, *, max_lines: int) -> list[str]:
    """Return the last lines, of at most 1 MiB; none of an absent file."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        start = max(0, file.seek(0, 2) - MAX_TAIL_BYTES)
        file.seek(start)
        data = file.read(MAX_TAIL_BYTES)
    # Only \n ends a line: a progress bar's \r shows its last state.
    lines = data.decode("utf-8", "replace").removesuffix("\n").split("\n")
    if start and len(lines) > 1:
        lines = lines[1:]  # begins in the middle of a line
    return [line.rsplit("\r", 1)[-1] for line in lines[-max_lines:]] if data else []


def with_tail(sentence: str, lines: Sequence[str]) -> str:
    """Append the last lines of a log to the message."""
    tail = "\n".join(lines[-SHOWN_LINES:])
    return clean_text(f"{sentence} Last log lines:\n{tail}" if tail else sentence)
