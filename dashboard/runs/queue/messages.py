"""Messages about a run's position in the queue and its start."""

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
        return f"Next in the queue: {busy}."
    return f"{busy[0].upper()}{busy[1:]}. {describe_before(place)}"


def _busy(place: Place, line: Line) -> str:
    if line.num_busy < line.num_slots:
        waits = place.start.seconds != 0
        return "no suitable worker is free" if waits else "a worker is free"
    if line.num_slots == 1:
        return "the only worker is busy"
    return f"all {line.num_slots} worker slots are busy"


def describe_before(place: Place) -> str:
    if place.number in (None, 1):
        return ""
    num_before = (place.number or 1) - 1
    message = (
        "1 run is ahead of it"
        if num_before == 1
        else f"{num_before} runs are ahead of it"
    )
    foreign = place.num_foreign_before
    if foreign == num_before:
        return f"{message}, from {'another team' if foreign == 1 else 'other teams'}."
    return f"{message}, {foreign} from other teams." if foreign else f"{message}."


def describe_start(start: Start) -> str:
    if start.seconds is None:
        return (
            "Its start time is unknown, because runs ahead of it have no time estimate."
        )
    if start.seconds == 0:
        return "It starts within seconds."
    about = rough_duration(start.seconds)
    if start.is_latest:
        return f"It starts within about {about}."
    return f"It starts in about {about}."


def rough_duration(seconds: float) -> str:
    """Rounded to minutes."""
    if seconds < 60:
        return "a minute"
    return duration(60 * round(seconds / 60)).removesuffix(" 00 s")


def describe_short(place: Place, line: Line) -> str:
    """A few words for the run list."""
    if place.waiting.on_hold:
        return "on hold"
    if place.waiting.is_resting:
        return "retrying soon"
    if place.lack:
        return "no suitable worker" if line.hosts else "no worker accepts runs"
    when = short_start(place.start)
    return f"{ordinal(place.number or 1)} in queue{f', {when}' if when else ''}"


def short_start(start: Start) -> str:
    if start.seconds is None:
        return ""
    if start.seconds == 0:
        return "now"
    return f"{'≤' if start.is_latest else '≈'} {rough_duration(start.seconds)}"


def title_start(start: Start) -> str:
    """The start of a run on the queue page."""
    if start.seconds is None:
        return "Start unknown"
    return "Starts now" if not start.seconds else f"Starts in {short_start(start)}"


def ordinal(number: int) -> str:
    tail = number % 100
    ending = (
        "th" if 10 < tail < 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{ending}"
