"""Updates for the pages of a run, read once for all viewers; also over HTTP."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import Callable, Container
from dataclasses import asdict
from itertools import chain
from typing import Any, ParamSpec, TypeVar, cast
from weakref import WeakValueDictionary

from channels.db import database_sync_to_async

from dashboard.live.consumer import FRAME_SECONDS
from dashboard.live.messages import Frame, Position
from dashboard.runs.charts.figures import features_of_run, shown_metrics
from dashboard.runs.charts.series import (
    POINTS_PER_BUCKET,
    Clock,
    Curve,
    Tail,
    read_history,
    read_tails,
)
from dashboard.runs.models import Evaluation, Run, RunEvent, Step
from dashboard.runs.progress import describe_progress

# Further behind than this, downsampled curves are smaller than the missed updates.
MAX_BEHIND = 2_000
MAX_EVALUATIONS = 1_000
MAX_EVENTS = 200
# Sent as steps and evaluations, or not at all.
NOT_SENT = (
    "step_finished",
    "group_scored",
    "tokens_measured",
    "mismatch_measured",
    "ranks_measured",
    "evaluated",
)
# Viewers that poll within the same second share one read of the run's row.
FRESH_SECONDS = 1.0
# Real viewers have a handful of positions; others could request thousands.
MAX_ENCODED = 32
Encoded = tuple[Position, str]
Args = ParamSpec("Args")
Result = TypeVar("Result")


class Feed:
    """The newest part of a run's stream, kept while the run has viewers.

    Viewers have few different positions, so updates are encoded once per position.
    """

    def __init__(self, run_id: int) -> None:
        self._run_id = run_id
        self._lock = asyncio.Lock()
        self._read_at = float("-inf")
        self._run: Run | None = None  # as last read
        self._floor = 0  # the batches contain everything after this number
        self._batches: deque[Frame] = deque()
        self._snapshot: Encoded | None = None
        self._encoded: dict[Position, Encoded] = {}

    async def read_after(
        self, position: Position, notified_seq: int | None
    ) -> Encoded | None:
        """Return the updates for a viewer at this position; None if there are none.

        `notified_seq`: the number of a notification; None: it polls.
        """
        async with self._lock:
            run = await self._catch_up(notified_seq)
            if position == Position(run.seq, run.attempt):
                return None
            if position not in self._encoded:
                if len(self._encoded) == MAX_ENCODED:
                    self._encoded.clear()
                self._encoded[position] = await self._encode_after(run, position)
            return self._encoded[position]

    async def _catch_up(self, notified_seq: int | None) -> Run:
        if self._run is not None and self._is_fresh(self._run, notified_seq):
            return self._run
        # Viewers that wait here together have one position then, and get one frame.
        await asyncio.sleep(self._read_at + FRAME_SECONDS - time.monotonic())
        self._read_at = time.monotonic()
        run = await _read(read_run, self._run_id)
        before = self._run
        if before is None or not is_within_reach(
            run, Position(before.seq, before.attempt)
        ):
            self._begin_at(run)
        elif run.seq > before.seq:
            self._add(await _read(read_batch, run, before.seq))
            if run.last_step < before.last_step:
                self._snapshot = None  # of a history that a resume has replaced
        self._run = run
        return run

    def _is_fresh(self, run: Run, notified_seq: int | None) -> bool:
        if notified_seq is not None:
            return run.seq >= notified_seq
        return time.monotonic() - self._read_at < FRESH_SECONDS

    def _begin_at(self, run: Run) -> None:
        self._floor = run.seq
        self._batches.clear()
        self._snapshot = None
        self._encoded.clear()

    def _add(self, batch: Frame) -> None:
        self._batches.append(batch)
        self._encoded.clear()
        while batch["seq"] - self._floor > MAX_BEHIND:
            self._floor = self._batches.popleft()["seq"]

    async def _encode_after(self, run: Run, position: Position) -> Encoded:
        if self._floor <= position.seq <= run.seq and position.attempt == run.attempt:
            return _encode(self._join_after(position.seq))
        if await _read(is_within_reach, run, position):
            return await _read(lambda: _encode(read_batch(run, position.seq)))
        if self._snapshot is None or self._snapshot[0].seq < self._floor:
            self._snapshot = await _read(lambda: _encode(read_snapshot(run)))
        return self._snapshot

    def _join_after(self, seq: int) -> Frame:
        missed = [batch for batch in self._batches if batch["seq"] > seq]
        joined = missed[-1].copy()
        joined["after"] = seq
        joined["steps"] = _join(seq, [b["steps"] for b in missed])
        joined["evaluations"] = _join(seq, [b["evaluations"] for b in missed])
        joined["events"] = _join(seq, [b["events"] for b in missed])
        return joined


def feed_of(run_id: int) -> Feed:
    """Return the process's feed of this run; it exists while a viewer references it."""
    return _feeds.setdefault(run_id, Feed(run_id))


_feeds: WeakValueDictionary[int, Feed] = WeakValueDictionary()


def _join(after: int, parts: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [row for row in chain.from_iterable(parts) if row["seq"] > after]


def _encode(frame: Frame) -> Encoded:
    text = json.dumps(frame, allow_nan=False, separators=(",", ":"))
    return Position(frame["seq"], frame["attempt"]), text


async def _read(
    function: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs
) -> Result:
    # Reads of different runs may run in parallel: each has its own connection.
    return cast(
        "Result",
        await database_sync_to_async(function, thread_sensitive=False)(*args, **kwargs),
    )


def read_run(run_id: int) -> Run:
    return Run.objects.get(id=run_id)


def read_frame(run: Run, position: Position) -> Frame:
    """Read the updates for a page at this position; an empty batch if there are
    none.
    """
    if is_within_reach(run, position):
        return read_batch(run, position.seq)
    return read_snapshot(run)


def is_within_reach(run: Run, position: Position) -> bool:
    """Tell whether a batch can bring the page up to date, or only a snapshot."""
    behind = run.seq - position.seq
    return (
        position.seq > 0
        and 0 <= behind <= MAX_BEHIND
        and _held_attempt(run, position) == run.attempt
    )


def _held_attempt(run: Run, position: Position) -> int:
    if position.attempt is not None:
        return position.attempt
    events = RunEvent.objects.filter(run=run, seq__lte=position.seq)
    return events.order_by("-seq").values_list("attempt", flat=True).first() or 0


def read_batch(run: Run, after: int) -> Frame:
    """Everything after `after`; three queries.

    The run's row was read first and numbers are assigned under its lock, so everything
    up to `run.seq` is committed.
    """
    new = {"run": run, "seq__gt": after, "seq__lte": run.seq}
    current = {**new, "superseded_by__isnull": True}
    events = RunEvent.objects.filter(**new).exclude(type__in=NOT_SENT)
    return Frame(
        type="batch",
        after=after,
        seq=run.seq,
        attempt=run.attempt,
        run=describe_progress(run).as_dict(),
        steps=[
            describe_step(run, step)
            for step in Step.objects.filter(**current).order_by("seq")
        ],
        evaluations=[
            _describe_evaluation(e)
            for e in Evaluation.objects.filter(**current).order_by("seq")
        ],
        events=[_describe_event(e) for e in events.order_by("seq")],
        curves={},
    )


def read_snapshot(run: Run) -> Frame:
    """Everything that an overview shows, in a dozen queries; downsampled if long.

    Of other metrics it contains the range; curves.json has the rest.
    """
    shown = shown_metrics(features_of_run(run))
    names = [name for name in run.metric_names if name in shown]
    history = read_history(run, names)
    rows = list(
        Evaluation.objects.filter(run=run, superseded_by__isnull=True).order_by(
            "step", "name"
        )
    )
    stride = -(-len(rows) // MAX_EVALUATIONS) or 1
    events = RunEvent.objects.filter(run=run).exclude(type__in=NOT_SENT)
    newest = list(events.order_by("-seq")[:MAX_EVENTS])
    # Phases are always drawn, even if they started long ago.
    phases = events.filter(type="phase_started").order_by("-seq")
    if len(newest) == MAX_EVENTS:
        newest += phases.filter(seq__lt=newest[-1].seq)
    return Frame(
        type="snapshot",
        after=0,
        seq=run.seq,
        attempt=run.attempt,
        run=describe_progress(run).as_dict(),
        steps=[],
        # Counted from the end, so that the newest is always included.
        evaluations=[_describe_evaluation(e) for e in rows[::-1][::stride][::-1]],
        events=[_describe_event(e) for e in reversed(newest)],
        curves={
            "names": {
                name: _describe_curve(curve, history.clock)
                for name, curve in history.curves.items()
                if curve.steps
            },
            "clock": asdict(history.clock),
            "width": history.width,
            "others": _read_ranges(run, shown),
            "tails": [describe_tail(tail) for tail in read_tails(run, names)],
        },
    )


def _read_ranges(run: Run, shown: Container[str]) -> dict[str, list[float]]:
    """Lowest, highest and last value of the metrics whose history is not sent."""
    history = read_history(
        run,
        [name for name in run.metric_names if name not in shown],
        max_points=POINTS_PER_BUCKET,
    )
    return {
        name: [min(curve.values), max(curve.values), curve.values[-1]]
        for name, curve in history.curves.items()
        if curve.values
    }


def describe_tail(tail: Tail) -> dict[str, Any]:
    return {
        "attempt": tail.attempt,
        "after": tail.after,
        "clock": asdict(tail.clock),
        "names": {
            name: _describe_curve(curve, tail.clock)
            for name, curve in tail.curves.items()
        },
    }


def _describe_curve(curve: Curve, clock: Clock) -> dict[str, Any]:
    """Leave out the steps of a curve with a value at each of the clock's steps."""
    if curve.steps == clock.steps:
        return {"values": curve.values}
    return asdict(curve)


def describe_step(run: Run, step: Step) -> dict[str, Any]:
    pairs = run.name_values(step.values).items()
    return {
        "step": step.step,
        "seq": step.seq,
        "time": step.time.timestamp(),
        "values": {name: value for name, value in pairs if _is_number(value)},
    }


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _describe_evaluation(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "step": evaluation.step,
        "seq": evaluation.seq,
        "time": evaluation.time.timestamp(),
        "name": evaluation.name,
        "metrics": {k: v for k, v in evaluation.metrics.items() if _is_number(v)},
    }


def _describe_event(event: RunEvent) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "type": event.type,
        "step": event.step,
        "time": event.time.timestamp(),
        "body": event.body,
    }
