"""What is typed to change a run after its launch, read."""

from __future__ import annotations

from django.http import QueryDict

from dashboard.project.edits import Edit
from dashboard.runs.changing import ENDED_WELL, STEPS
from dashboard.runs.checkpoints.listing import resumable
from dashboard.runs.config.fields import ConfigField, all_fields
from dashboard.runs.models import Run
from trainer.config import MAY_CHANGE

MAX_STEPS = 10_000_000


def interval_fields() -> list[ConfigField]:
    """What may change beside the number of steps."""
    return [all_fields()[path] for path in MAY_CHANGE if path != STEPS]


def next_step(run: Run) -> int:
    """The first one that an extension could change."""
    if run.state not in ENDED_WELL:
        return run.last_step + 1
    saved = resumable(run)
    return saved.step + 1 if saved else 1


def propose_steps(text: str, run: Run) -> int | None:
    """The last step to look at first, if one is typed. ValueError: it cannot be."""
    text = text.strip().replace(",", "")
    if not text:
        return None
    lowest = next_step(run) if run.state in ENDED_WELL else run.num_steps + 1
    number = int(text) if _is_whole(text) else 0
    if lowest <= number <= MAX_STEPS:
        return number
    raise ValueError(
        f"The last step must be a whole number from {lowest:,} to {MAX_STEPS:,}; got "
        f"{text[:40]!r}."
    )


def read_steps(text: str) -> int:
    """ValueError: it is no whole number."""
    return _read_whole(text, "The last step")


def read_intervals(posted: QueryDict) -> Edit:
    """ValueError: one is no whole number."""
    fields = {field.path: field for field in interval_fields()}
    sent = Edit.read(posted, fields)
    typed = {path: text for path, text in sent.given.items() if text.strip()}
    titles = {path: field.title for path, field in fields.items()}
    return Edit(
        given={p: _read_whole(text, titles[p]) for p, text in typed.items()},
        was={p: _read_whole(sent.was[p], titles[p]) for p in typed if p in sent.was},
    )


def _read_whole(text: str, what: str) -> int:
    text = text.strip()
    if _is_whole(text):
        return int(text)
    raise ValueError(f"{what} must be a whole number; got {text[:40]!r}.")


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 9
