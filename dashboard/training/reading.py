"""Lines of an event log as events, each with its place in the log."""

from __future__ import annotations

import math
import time
from typing import Any

from pydantic import ValidationError

from dashboard.training.follow import Lines
from trainer.events import Event, UnknownEvent, Warned, parse_event

MAX_SHOWN = 200
MAX_FIELDS = 5  # named of a line; a group may have a thousand completions


def read_events(lines: Lines, *, epoch: int) -> list[Event]:
    """One event for every line: one that cannot be read becomes a warning.

    So does one of a type that only a newer trainer knows.

    So the numbers stay without a gap, and the page says what is missing.
    """
    return [
        _read(text, line=lines.first + index, epoch=epoch)
        for index, text in enumerate(lines.texts)
    ]


def _read(text: bytes, *, line: int, epoch: int) -> Event:
    try:
        event = parse_event(text)
        _check_place(event, line=line, epoch=epoch)
    except UnknownEvent as unknown:
        return _unknown(unknown, line=line, epoch=epoch)
    except ValueError as error:
        return _unreadable(text, line=line, epoch=epoch, error=error)
    return event


def _check_place(event: Event, *, line: int, epoch: int) -> None:
    if (event.line, event.epoch) != (line, epoch):
        raise ValueError(
            f"It says line {event.line} of epoch {event.epoch}, but is line {line} "
            f"of epoch {epoch}."
        )
    if not _is_time(event.time):
        raise ValueError(f"Its time, {event.time}, is no time.")


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and 0 <= seconds < 1e11


def _unknown(unknown: UnknownEvent, *, line: int, epoch: int) -> Warned:
    return Warned(
        line=line,
        epoch=epoch,
        time=unknown.time if _is_time(unknown.time) else time.time(),
        step=unknown.step,
        code="unknown_event",
        message=f"Line {line} of the event log was left out: {unknown} A newer trainer "
        "wrote it. Update Cohort to have what comes next.",
    )


def _unreadable(text: bytes, *, line: int, epoch: int, error: ValueError) -> Warned:
    shown = text[:MAX_SHOWN].decode("utf-8", "replace")
    return Warned(
        line=line,
        epoch=epoch,
        time=time.time(),
        step=0,
        code="unreadable_line",
        message=f"Line {line} of the event log could not be read and was left out: "
        f"{_why(error)} It begins: {shown!r}.",
    )


def _why(error: ValueError) -> str:
    """Of what pydantic found: each field, what is wrong, the value."""
    if not isinstance(error, ValidationError):
        return str(error)[:MAX_SHOWN]
    found = error.errors(include_url=False)
    told = [_of_field(one) for one in found[:MAX_FIELDS]]
    if len(found) > MAX_FIELDS:
        told.append(f"And {len(found) - MAX_FIELDS:,} more")
    return " ".join(f"{sentence}." for sentence in told)


def _of_field(one: Any) -> str:
    _, *place = map(str, one["loc"] or ("", "the line"))
    told = f"{'.'.join(place) or 'type'}: {one['msg']}"
    if one["type"] == "missing":
        return told
    return f"{told}; got {ascii(one['input'])[:60]}"
