"""Event lines of an external trainer, each stored once, up to the run's end."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate, groupby
from typing import Any

from django.db import transaction
from django.db.models import Max, Min
from django.db.models.functions import Now
from pydantic import BaseModel, Field

from dashboard.accounts.members import check_storage
from dashboard.completions.models import Group
from dashboard.datasets.limits import check_disk_space_to_store
from dashboard.datasets.models import Dataset, DatasetVersion
from dashboard.datasets.row import Row
from dashboard.datasets.services import create_dataset_version
from dashboard.project.database import clean_text
from dashboard.project.errors import UserError
from dashboard.runs.models import Run, RunAttempt, RunState
from dashboard.runs.progress import CONTACT
from dashboard.runs.state import END_TIME, transition
from dashboard.supervision.event_log import BATCH_BYTES, Lines, read_events
from dashboard.supervision.external_events import (
    MAX_LINES,
    AttemptReplaced,
    DiskFull,
    EventValidator,
    MissingLines,
    QuotaExceeded,
    RunEnded,
)
from dashboard.supervision.ingest import ingest, last_ingested_line
from dashboard.supervision.lease import Claim, close_attempt
from trainer.events import Event, GroupScored, RunFailed, RunFinished, Warned
from trainer.metric_names import MAX_METRICS

logger = logging.getLogger(__name__)
MAX_REASON = 20_000
LEFT_OUT = ("unreadable_line", "not_taken")


def end_run(run: Run, last_word: Event) -> None:
    """Within the transaction that stored it."""
    if isinstance(last_word, RunFailed):
        error = clean_text(last_word.error)[:MAX_REASON]
        _move(run, RunState.FAILED, fail_reason=error)
    elif isinstance(last_word, RunFinished):
        _move(run, RunState.FINISHED)
    else:
        _move(
            run, RunState.STOPPED, stop_reason="The trainer ended before its last step."
        )
    _date_back(run, last_word)
    # The run's prompts become a dataset, as those of an imported run do. Not if indexes
    # are missing: row positions would then point at other prompts.
    groups = Group.objects.filter(run=run)
    highest = groups.aggregate(highest=Max("prompt_index"))["highest"]
    if highest is None:
        return
    if groups.values("prompt_index").distinct().count() != highest + 1:
        return
    dataset = run.dataset_version.dataset if run.dataset_version else None
    if dataset is not None and dataset.trashed_at is not None:
        dataset = None
    try:
        with transaction.atomic():
            version = create_prompts_version(run, _rows(run), dataset=dataset)
    except ValueError as error:
        logger.warning(
            "run %s: failed to create a dataset from its prompts: %s", run.pk, error
        )
        return
    Run.objects.filter(pk=run.pk).update(dataset_version=version)


def _move(run: Run, target: RunState, **fields: Any) -> None:
    is_moved = transition(
        run.pk,
        sources=[RunState.RUNNING],
        target=target,
        finished_at=END_TIME,
        **fields,
    )
    if is_moved:
        close_attempt(run.pk, run.attempt, f"{target} at step {run.last_step}")


def _date_back(run: Run, last_word: Event) -> None:
    """Take the attempt's times from its events where they were sent later, as by
    `cohort sync`: its trainer had begun before the run was opened.
    """
    first = run.steps.filter(attempt=run.attempt).aggregate(first=Min("time"))["first"]
    if first is None:
        return
    last = datetime.fromtimestamp(last_word.time, UTC)
    late = RunAttempt.objects.filter(
        run=run, number=run.attempt, claimed_at__gt=first
    ).update(claimed_at=first, ended_at=max(first, last))
    if late and run.attempt == 1:
        Run.objects.filter(pk=run.pk).update(started_at=first)


def create_prompts_version(
    run: Run, rows: Iterable[Row], *, dataset: Dataset | None = None
) -> DatasetVersion:
    """Store the prompts of a run trained elsewhere, in a new dataset or this one."""
    name = dataset.name if dataset else f"Prompts of {run.name}"[:70]
    if dataset is None:
        taken = set(
            Dataset.objects.filter(team=run.team).values_list("name", flat=True)
        )
        numbered = (f"{name} {number}" for number in range(2, len(taken) + 3))
        name = next(free for free in (name, *numbered) if free not in taken)
    return create_dataset_version(
        team=run.team,
        name=name,
        rows=rows,
        mapping={"prompt": "prompt", "answer": "answer", "columns": []},
        source={"kind": "run_import", "filename": f"prompts of {run.name}"},
        user=run.owner,
        dataset=dataset,
    )


def _rows(run: Run) -> Iterator[Row]:
    first = (
        Group.objects.filter(run=run)
        .order_by("prompt_index", "step")
        .distinct("prompt_index")
        .only("prompt", "answer", "answer_is_list")
    )
    for group in first.iterator(chunk_size=500):
        yield Row(prompt=group.prompt, answer=group.answer_value)


class RunPosition(BaseModel):
    """The position up to which a run is stored; a client continues from here."""

    state: str = Field(examples=["running"])
    attempt: int = Field(examples=[1])
    line: int = Field(description="Last stored line of this attempt.", examples=[120])
    step: int = Field(description="Last finished step.", examples=[40])
    num_prompts: int = Field(description="Highest prompt index + 1.", examples=[64])
    num_left_out: int = Field(
        description="Number of events that Cohort could not read or store.",
        examples=[0],
    )
    left_out: str = Field(
        description="Why the newest of them was skipped.", examples=[""]
    )


def read_position(run: Run) -> RunPosition:
    """Two queries."""
    highest = (
        Group.objects.filter(run=run)
        .order_by("-prompt_index")
        .values_list("prompt_index", flat=True)
        .first()
    )
    return RunPosition(
        state=run.state,
        attempt=run.attempt,
        line=last_ingested_line(run.pk, run.attempt),
        step=run.last_step,
        num_prompts=0 if highest is None else highest + 1,
        num_left_out=run.source.get("num_left_out", 0),
        left_out=run.source.get("left_out", ""),
    )


@transaction.atomic
def take_lines(
    run: Run, *, attempt: int, first: int, texts: Sequence[bytes]
) -> RunPosition:
    """Store consecutive lines; `first` is the number of the first one.

    Lines that are already stored are skipped, so a client may repeat a request without
    response. Without lines it is a heartbeat. A line that cannot be read becomes a
    warning, as in our own logs.

    Raises AttemptReplaced, MissingLines, RunEnded or QuotaExceeded, with nothing
    stored.
    """
    if len(texts) > MAX_LINES:
        raise UserError(
            "events.too_many_lines",
            f"A batch may have at most {MAX_LINES:,} lines; got {len(texts):,}.",
        )
    if first < 1:
        raise UserError(
            "events.bad_line_number", f"Line numbers start at 1; got first={first}."
        )
    # One writer at a time: a batch that is sent again may overtake its first sending.
    run = (
        Run.objects.select_for_update(of=("self",))
        .select_related("team", "owner")
        .get(pk=run.pk)
    )
    if attempt != run.attempt:
        raise AttemptReplaced(
            f"These lines belong to attempt {attempt}, but the run is at attempt "
            f"{run.attempt}. Nothing was stored."
        )
    stored = last_ingested_line(run.pk, attempt)
    if first > stored + 1:
        raise MissingLines(first=first, stored=stored)
    new = texts[stored + 1 - first :]
    if new and run.has_ended:
        raise RunEnded(f"The run is {run.state} and accepts no lines after {stored:,}.")
    if not run.has_ended:
        _extend_lease(run)
    if new:
        _take_storage(run, sum(map(len, new)))
        _store(run, first=stored + 1, texts=new)
    run.refresh_from_db(fields=["state", "last_step"])
    return read_position(run)


def _extend_lease(run: Run) -> None:
    lease = Now() + CONTACT
    if run.state == RunState.LOST:
        transition(
            run.pk,
            sources=[RunState.LOST],
            target=RunState.RUNNING,
            verb="run.heard_again",
            lease_until=lease,
        )
        RunAttempt.objects.filter(run=run, number=run.attempt).update(
            ended_at=None, outcome=""
        )
    else:
        Run.objects.filter(pk=run.pk).update(lease_until=lease)


def _take_storage(run: Run, num_bytes: int) -> None:
    """Count what is stored of a run, as long as the run exists."""
    try:
        check_storage(run.team, num_bytes, purpose=f"data of {run.name}")
        check_disk_space_to_store(num_bytes, purpose=f"data of {run.name}")
    except UserError as error:
        is_of_team = error.code == "quotas.storage"
        raise (QuotaExceeded if is_of_team else DiskFull)(str(error)) from None
    run.source = {**run.source, "num_bytes": run.source.get("num_bytes", 0) + num_bytes}
    Run.objects.filter(pk=run.pk).update(source=run.source, active_at=Now())


def _store(run: Run, *, first: int, texts: Sequence[bytes]) -> None:
    """Store as much at a time as of our own logs: events take more than their lines."""
    validator = EventValidator(run)
    ends = accumulate(map(len, texts))
    for _, part in groupby(texts, key=lambda _: next(ends) // BATCH_BYTES):
        lines = Lines(first=first, texts=tuple(part), end=0)
        events = validator.validate(read_events(lines, attempt=run.attempt))
        # Shown on the run's page, since the trainer may only check for 200.
        num_metrics = len(validator.metrics)
        reasons = [
            event.message
            for event in events
            if isinstance(event, Warned) and event.code in LEFT_OUT
        ]
        num = run.source.get("num_left_out", 0) + len(reasons)
        source = dict(run.source)
        if reasons:
            source |= {"num_left_out": num, "left_out": clean_text(reasons[-1])}
        if num_metrics > MAX_METRICS:
            source["most_metrics"] = MAX_METRICS
        if source != run.source:
            run.source = source
            Run.objects.filter(pk=run.pk).update(source=source)
        # A rule that the opening did not name counts once.
        rules = run.config["reward"]["recipe"]["rules"]
        rule_names = {rule["name"] for rule in rules}
        names = dict.fromkeys(
            name
            for event in events
            if isinstance(event, GroupScored)
            for completion in event.completions
            for name in completion.rules
        )
        if new := [name for name in names if name not in rule_names]:
            rules += [{"name": name, "weight": 1.0} for name in new]
            Run.objects.filter(pk=run.pk).update(config=run.config)
        ingest(Claim(run_id=run.pk, attempt=run.attempt), events)
        first = lines.last + 1
    run.refresh_from_db(fields=["last_step", "num_steps", "state"])
    if run.last_step > run.num_steps:
        Run.objects.filter(pk=run.pk).update(num_steps=run.last_step)
    if validator.last_word is not None:
        end_run(run, validator.last_word)
