"""Where a run stands in line, and when it may start, in words."""

from __future__ import annotations

from dashboard.accounts.templatetags.numbers import duration
from dashboard.runs.queue.order import Line, Place, Start


def describe_place(place: Place, line: Line) -> str:
    """Sentences for the run's page."""
    if place.waiting.on_hold:
        return "On hold: workers skip it until it is released."
    if place.lack:
        before = describe_before(place)
        return f"{place.lack} {before}".strip() if not line.hosts else place.lack
    if place.number is None:
        return ""
    return f"{_where(place, line)} {describe_start(place.start)}".strip()


def _where(place: Place, line: Line) -> str:
    busy = _busy(place, line)
    if place.number == 1:
        return f"Next in line: {busy}."
    return f"{busy[0].upper()}{busy[1:]}. {describe_before(place)}"


def _busy(place: Place, line: Line) -> str:
    if line.num_busy < line.num_slots:
        waits = place.start.seconds != 0
        return "no worker that suits it is free" if waits else "a worker is free"
    if line.num_slots == 1:
        return "the one worker is busy"
    return f"all {line.num_slots} slots of the workers are busy"


def describe_before(place: Place) -> str:
    if place.number in (None, 1):
        return ""
    num_before = (place.number or 1) - 1
    message = (
        "1 run is before it" if num_before == 1 else f"{num_before} runs are before it"
    )
    foreign = place.num_foreign_before
    if foreign == num_before:
        return f"{message}, of {'another team' if foreign == 1 else 'other teams'}."
    return f"{message}, {foreign} of other teams." if foreign else f"{message}."


def describe_start(start: Start) -> str:
    if start.seconds is None:
        return (
            "Its start time is unknown: runs before it have no estimate of their time."
        )
    if start.seconds == 0:
        return "It starts within seconds."
    about = rough_duration(start.seconds)
    if start.is_latest:
        return f"It starts in about {about} at the latest."
    return f"It starts in about {about}."


def rough_duration(seconds: float) -> str:
    """No finer than it is known: minutes from a minute on."""
    if seconds < 60:
        return "a minute"
    return duration(60 * round(seconds / 60)).removesuffix(" 00 s")


def describe_short(place: Place, line: Line) -> str:
    """A few words for the run list."""
    if place.waiting.on_hold:
        return "on hold"
    if place.waiting.is_resting:
        return "tried again soon"
    if place.lack:
        return "no worker suits it" if line.hosts else "no worker takes runs"
    when = short_start(place.start)
    return f"{ordinal(place.number or 1)} in line{f', {when}' if when else ''}"


def short_start(start: Start) -> str:
    if start.seconds is None:
        return ""
    if start.seconds == 0:
        return "now"
    return f"{'≤' if start.is_latest else '≈'} {rough_duration(start.seconds)}"


def title_start(start: Start) -> str:
    """The words beside a run on the page of the queue."""
    if start.seconds is None:
        return "Start not known"
    return "Starts now" if not start.seconds else f"Starts in {short_start(start)}"


def ordinal(number: int) -> str:
    tail = number % 100
    ending = (
        "th" if 10 < tail < 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{ending}"
