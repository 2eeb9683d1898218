"""Lines of an event log as events, each with its place in the log."""

from __future__ import annotations

import math
import time

from dashboard.training.follow import Lines
from trainer.events import Event, Warned, parse_event

MAX_SHOWN = 200


def read_events(lines: Lines, *, epoch: int) -> list[Event]:
    """One event for every line: one that cannot be read becomes a warning.

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
    except ValueError as error:
        return _unreadable(text, line=line, epoch=epoch, error=error)
    return event


def _check_place(event: Event, *, line: int, epoch: int) -> None:
    if (event.line, event.epoch) != (line, epoch):
        raise ValueError(
            f"It says line {event.line} of epoch {event.epoch}, but is line {line} "
            f"of epoch {epoch}."
        )
    if not math.isfinite(event.time) or not 0 <= event.time < 1e11:
        raise ValueError(f"Its time, {event.time}, is no time.")


def _unreadable(text: bytes, *, line: int, epoch: int, error: ValueError) -> Warned:
    shown = text[:MAX_SHOWN].decode("utf-8", "replace")
    return Warned(
        line=line,
        epoch=epoch,
        time=time.time(),
        step=0,
        code="unreadable_line",
        message=f"Line {line} of the event log could not be read and was left out: "
        f"{str(error)[:MAX_SHOWN]} It begins: {shown!r}.",
    )
