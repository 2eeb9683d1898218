"""Messages about a run's position in the queue and its start."""

from __future__ import annotations

from dashboard.accounts.templatetags.numbers import duration
from dashboard.runs.queue.order import Queue, QueuePosition, Start


def describe_position(position: QueuePosition, queue: Queue) -> str:
    """Sentences for the run's page."""
    if position.waiting.on_hold:
        return "On hold: workers skip it until it is released."
    if position.lack:
        before = describe_before(position)
        return f"{position.lack} {before}".strip() if not queue.hosts else position.lack
    if position.number is None:
        return ""
    return f"{_where(position, queue)} {describe_start(position.start)}".strip()


def _where(position: QueuePosition, queue: Queue) -> str:
    busy = _busy(position, queue)
    if position.number == 1:
        return f"Next in the queue: {busy}."
    return f"{busy[0].upper()}{busy[1:]}. {describe_before(position)}"


def _busy(position: QueuePosition, queue: Queue) -> str:
    if queue.num_busy < queue.num_slots:
        waits = position.start.seconds != 0
        return "no suitable worker is free" if waits else "a worker is free"
    if queue.num_slots == 1:
        return "the only worker is busy"
    return f"all {queue.num_slots} worker slots are busy"


def describe_before(position: QueuePosition) -> str:
    if position.number in (None, 1):
        return ""
    num_before = (position.number or 1) - 1
    message = (
        "1 run is ahead of it"
        if num_before == 1
        else f"{num_before} runs are ahead of it"
    )
    foreign = position.num_foreign_before
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


def describe_short(position: QueuePosition, queue: Queue) -> str:
    """Describe it in a few words, for the run list."""
    if position.waiting.on_hold:
        return "on hold"
    if position.waiting.is_resting:
        return "retrying soon"
    if position.lack:
        return "no suitable worker" if queue.hosts else "no worker accepts runs"
    when = short_start(position.start)
    return f"{ordinal(position.number or 1)} in queue{f', {when}' if when else ''}"


def short_start(start: Start) -> str:
    if start.seconds is None:
        return ""
    if start.seconds == 0:
        return "now"
    return f"{'≤' if start.is_latest else '≈'} {rough_duration(start.seconds)}"


def title_start(start: Start) -> str:
    """Describe the start of a run on the queue page."""
    if start.seconds is None:
        return "Start unknown"
    return "Starts now" if not start.seconds else f"Starts in {short_start(start)}"


def ordinal(number: int) -> str:
    tail = number % 100
    ending = (
        "th" if 10 < tail < 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{ending}"
