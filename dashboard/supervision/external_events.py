"""What external trainers may send: limits, event types, and why a batch is refused.

An invalid event becomes a warning: a client would send a rejected batch again and
again, and later events would wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dashboard.completions.models import Group
from dashboard.project.database import clean_text
from dashboard.runs.models import Run
from trainer.events import (
    Evaluated,
    Event,
    GroupScored,
    MismatchMeasured,
    PhaseStarted,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    RunStopped,
    StepFinished,
    TokensMeasured,
    Warned,
)

# An idle reporter sends a heartbeat every 30 s.
MAX_STEP = 2**31 - 1
MAX_LINES = 5_000  # of one batch
MAX_LINE_BYTES = 16 * 2**20
MAX_BATCH_BYTES = 32 * 2**20  # unzipped
MAX_COMPLETIONS = 1_024  # of one group
MAX_RULES = 64
MAX_SETTINGS_BYTES = 64 * 2**10


LAST_WORDS = (RunFinished, RunStopped, RunFailed)
ACCEPTED = (
    Evaluated,
    GroupScored,
    MismatchMeasured,
    PhaseStarted,
    RunResumed,
    RunStarted,
    StepFinished,
    TokensMeasured,
    Warned,
    *LAST_WORDS,
)
MAX_COUNT = 2**31 - 1
Kind = TypeVar("Kind", bound=Event)


@dataclass(slots=True)
class EventValidator:
    """Judges the events of one batch, knowing what is stored of their steps."""

    run: Run
    last_word: Event | None = None
    _steps: set[int] = field(default_factory=set)
    _groups: set[tuple[int, int]] = field(default_factory=set)
    metrics: set[str] = field(default_factory=set)
    _rules: set[str] = field(default_factory=set)

    def validate(self, events: Sequence[Event]) -> list[Event]:
        """Two queries if there are steps or groups."""
        # Metrics of evaluations are only in the summary.
        self.metrics |= {*self.run.metric_names, *self.run.summary.get("last", {})}
        self._rules |= {
            rule["name"] for rule in self.run.config["reward"]["recipe"]["rules"]
        }
        steps = [e.step for e in _of(events, StepFinished)]
        if steps:
            self._steps = set(
                self.run.steps.filter(superseded_by=None, step__in=steps).values_list(
                    "step", flat=True
                )
            )
        scored = {e.step for e in _of(events, GroupScored)}
        if scored:
            self._groups = set(
                Group.objects.current()
                .filter(run=self.run, step__in=scored)
                .values_list("step", "prompt_index")
            )
        return [self._judge(event) for event in events]

    def _judge(self, event: Event) -> Event:
        if reason := self._why_not(event):
            return Warned(
                line=event.line,
                attempt=event.attempt,
                time=event.time,
                step=event.step if event.step <= MAX_STEP else 0,
                code="not_taken",
                message=f"Cohort skipped line {event.line:,}: {reason}",
            )
        if isinstance(event, StepFinished):
            self._steps.add(event.step)
            self.metrics |= event.metrics.keys()
        elif isinstance(event, Evaluated):
            self.metrics |= event.metrics.keys()
        elif isinstance(event, GroupScored):
            self._groups.add((event.step, event.prompt_index))
            event = _with_known_names(event)
            self._rules |= _rules_of(event)
        elif isinstance(event, LAST_WORDS):
            self.last_word = event
        return event

    def _why_not(self, event: Event) -> str:
        if self.last_word is not None:
            return "it came after the run's end."
        if not isinstance(event, ACCEPTED):
            return f"external trainers cannot send {type(event).__name__}."
        if event.step > MAX_STEP:
            return f"step {event.step} is above {MAX_STEP:,}."
        if isinstance(event, StepFinished):
            if event.step in self._steps:
                return f"step {event.step:,} was already sent; Cohort keeps the first."
            return self._why_no_metrics(event.metrics)
        if isinstance(event, GroupScored):
            num = len(event.completions)
            if not 1 <= num <= MAX_COMPLETIONS:
                return (
                    f"a group must have 1 to {MAX_COMPLETIONS:,} completions; got "
                    f"{num:,}."
                )
            if event.prompt_index > MAX_STEP:
                return f"its prompt index is above {MAX_STEP:,}."
            if (event.step, event.prompt_index) in self._groups:
                return (
                    f"prompt {event.prompt_index:,} of step {event.step:,} was already "
                    "sent; Cohort keeps the first."
                )
            if event.num_notes > MAX_COUNT:
                return f"its number of log lines, {event.num_notes:,}, is too large."
            if any(
                not 0 <= (c.num_tokens or 0) <= MAX_COUNT for c in event.completions
            ):
                return "a completion's number of tokens is negative or too large."
            if len(self._rules | _rules_of(event)) > MAX_RULES:
                return f"the run would have more than {MAX_RULES} rules."
            return ""
        if isinstance(event, TokensMeasured) and event.prompt_index > MAX_STEP:
            return f"its prompt index is above {MAX_STEP:,}."
        if isinstance(event, PhaseStarted) and event.last_step > MAX_STEP:
            return f"its last step is above {MAX_STEP:,}."
        if isinstance(event, Evaluated):
            return self._why_no_metrics(event.metrics)
        return ""

    def _why_no_metrics(self, metrics: Mapping[str, float | None]) -> str:
        for name in metrics:
            if not 0 < len(name) <= 120 or "\0" in name or name != clean_text(name):
                return (
                    f"a metric name must have 1 to 120 characters; got {name[:130]!r}."
                )
        return ""


def _of(events: Iterable[Event], kind: type[Kind]) -> list[Kind]:
    return [event for event in events if isinstance(event, kind)]


def _rules_of(event: GroupScored) -> set[str]:
    return {name for completion in event.completions for name in completion.rules}


def _with_known_names(event: GroupScored) -> GroupScored:
    """Rule names as they are stored, so that the run's settings use the same."""
    if all(len(n) <= 40 and n == clean_text(n) for n in _rules_of(event)):
        return event
    completions = [
        completion.model_copy(
            update={
                "rules": {clean_text(n[:40]): s for n, s in completion.rules.items()}
            }
        )
        for completion in event.completions
    ]
    return event.model_copy(update={"completions": completions})


class AttemptReplaced(Exception):
    """The lines are of an attempt that a newer one has replaced."""

    code = "events.attempt_replaced"


class MissingLines(Exception):
    """Lines are missing before the first one that came; `stored` is the last there."""

    code = "events.missing_lines"

    def __init__(self, *, first: int, stored: int) -> None:
        self.stored = stored
        super().__init__(
            f"Got line {first:,}, but the last stored line is {stored:,}. Continue "
            f"from line {stored + 1:,}."
        )


class RunEnded(Exception):
    """The run has ended, so it accepts no further line."""

    code = "events.run_ended"


class QuotaExceeded(Exception):
    """The team has as many runs, or as much stored, as it may: come again later."""

    code = "teams.quota_exceeded"


class DiskFull(QuotaExceeded):
    """The server's disk is full: come again later."""

    code = "disk_full"
