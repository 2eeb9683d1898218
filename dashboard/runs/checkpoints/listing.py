"""A run's checkpoints with their scores and the reasons to keep them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import uuid4

from dashboard.project.errors import UserError
from dashboard.runs.charts.chart import is_score
from dashboard.runs.charts.series import (
    ENDS,
    NONE,
    Series,
    read_evaluated,
    read_steps,
)
from dashboard.runs.checkpoints.files import (
    MANIFEST,
    CheckpointStore,
    Damaged,
    FilesGone,
    gone,
    link_files,
    link_or_copy,
    read_manifest,
)
from dashboard.runs.models import ENDED, REWARD, Checkpoint, PublishedModel, Run
from dashboard.runs.queries import RunDirectory, run_directory, settings_of

NOTHING = "none"  # in Run.best_by: no checkpoint is kept for being the best


@dataclass(slots=True)
class Listed:
    checkpoint: Checkpoint
    is_there: bool  # its files exist
    score: float | None = None  # of the metric that selects the best
    margin: float | None = None  # half of the score's 95 % interval
    reward: float | None = None
    is_best: bool = False
    is_resumed_from: bool = False
    reasons: list[str] = field(default_factory=list)  # why it is kept

    @property
    def num_bytes(self) -> int:
        return self.checkpoint.num_bytes


@dataclass(slots=True, kw_only=True)
class Listing:
    run: Run
    rows: list[Listed]
    metric: str  # "": none measured yet
    choices: list[str]
    is_seen: bool

    @property
    def kept(self) -> list[Listed]:
        """The rows whose files exist; where they cannot be read, those not deleted."""
        if self.is_seen:
            return [row for row in self.rows if row.is_there]
        return [row for row in self.rows if row.checkpoint.deleted_at is None]

    @property
    def gone(self) -> list[Listed]:
        kept = {row.checkpoint.pk for row in self.kept}
        return [row for row in self.rows if row.checkpoint.pk not in kept]

    @property
    def first(self) -> Listed | None:
        """The one to use: the best, else the newest."""
        current = [row for row in self.kept if row.checkpoint.superseded_by is None]
        return next((row for row in current if row.is_best), next(iter(current), None))

    @property
    def num_kept(self) -> int:
        return sum(row.is_there for row in self.rows)

    @property
    def num_bytes(self) -> int:
        return sum(row.num_bytes for row in self.rows if row.is_there)


def list_checkpoints(run: Run) -> Listing:
    """Newest first. Four queries, whatever there is."""
    store = CheckpointStore(run.pk)
    there = store.names()
    evaluated = read_evaluated([run])[run.pk]
    scores = read_scores(run, evaluated)
    metric = best_metric(run, scores)
    margins = find_margins(evaluated, metric)
    rewards = scores.get(REWARD, {})
    rows = [
        Listed(
            checkpoint,
            is_there=checkpoint.name in there,
            score=scores.get(metric, {}).get(checkpoint.step),
            margin=margins.get(checkpoint.step),
            reward=rewards.get(checkpoint.step),
        )
        for checkpoint in run.checkpoints.order_by("-step", "-attempt")
    ]
    _mark(run, rows)
    return Listing(
        run=run,
        rows=rows,
        metric=metric,
        choices=sorted(scores),
        is_seen=store.is_seen or not rows,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    step: int
    since: int  # step of the checkpoint before
    num_done: int  # steps since then

    @property
    def num_steps(self) -> int:
        return self.step - self.since


def next_checkpoint(run: Run, listing: Listing) -> Next | None:
    """Find it; None if the run has ended or its trainer is not Cohort's."""
    if run.has_ended or run.last_step >= run.num_steps:
        return None
    settings = settings_of(run)
    if settings is None:
        return None
    every = (
        settings.config_at(run.last_step + 1).checkpoint.every_steps or run.num_steps
    )
    step = min((run.last_step // every + 1) * every, run.num_steps)
    saved = (row.checkpoint for row in listing.rows)
    since = max((c.step for c in saved if c.superseded_by is None), default=0)
    return Next(step=step, since=since, num_done=run.last_step - since)


def resumable(run: Run) -> Checkpoint | None:
    """Find the checkpoint that an ended run would continue from.

    It is the newest in the trainer's folder: kept and pinned ones do not count. If the
    files cannot be read, the newest recorded one.
    """
    store = CheckpointStore(run.pk)
    newest: Checkpoint | None = run.newest_checkpoint
    if newest is None or not store.is_seen:
        return newest
    recorded = run.checkpoints.filter(superseded_by=None, deleted_at=None)
    return next(
        (c for c in recorded.order_by("-step") if (store.own / c.name).is_dir()), None
    )


def _mark(run: Run, rows: list[Listed]) -> None:
    present = [row for row in rows if row.is_there]
    history = [row for row in rows if row.checkpoint.superseded_by is None]
    current = [row for row in history if row.is_there]
    if current and run.state not in ENDED:
        current[0].is_resumed_from = True
        current[0].reasons.append("needed to resume")
    keep_last = run.config["checkpoint"]["keep_last"]
    newest = f"newest {keep_last}" if keep_last > 1 else "newest"
    for row in history[:keep_last]:
        row.reasons.append(newest)
    # The highest score; of equal ones the earliest.
    best = max(
        [row for row in current if row.score is not None],
        key=lambda row: (row.score, -row.checkpoint.step),
        default=None,
    )
    if best is not None:
        best.is_best = True
        if run.best_by != NOTHING:
            best.reasons.append("best")
    for row in present:
        if row.checkpoint.pinned_at is not None:
            row.reasons.append("pinned")
        if row.checkpoint.superseded_by is not None:
            row.reasons.append(f"superseded by attempt {row.checkpoint.superseded_by}")


def best_metric(run: Run, scores: Collection[str]) -> str:
    """Choose the metric that selects the best: as set, else held-out, else reward."""
    if run.best_by not in ("", NOTHING):
        return run.best_by
    held_out = [
        name for name in scores if name.startswith("eval/") and name.endswith("/mean")
    ]
    first = "eval/heldout/mean"
    if first in held_out:
        return first
    return min(held_out, default=REWARD if REWARD in scores else "")


def read_scores(
    run: Run, evaluated: Mapping[str, Series]
) -> dict[str, dict[int, float]]:
    """Rewards and held-out scores by step, at the steps that have a checkpoint."""
    steps = set(run.checkpoints.values_list("step", flat=True))
    measured = read_steps([run], [REWARD], at={run.pk: steps})[run.pk].metrics
    scores = {name: evaluated[name] for name in evaluated if is_score_name(name)}
    by_step = {
        name: dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))
        for name, series in (scores | measured).items()
    }
    return {
        name: {step: values[step] for step in steps & values.keys()}
        for name, values in by_step.items()
        if steps & values.keys()
    }


def find_margins(evaluated: Mapping[str, Series], metric: str) -> dict[int, float]:
    """Return half of each 95 % interval of a metric, by step."""
    low, high = (
        dict(zip(bound.steps.tolist(), bound.values.tolist(), strict=True))
        for end in ENDS
        for bound in [evaluated.get(f"{metric}/{end}", NONE)]
    )
    return {step: (high[step] - low[step]) / 2 for step in low.keys() & high.keys()}


def score_models(models: Sequence[PublishedModel]) -> dict[int, tuple[str, float]]:
    """Find the metric and held-out score of published models whose runs are there."""
    runs = {model.run_id: model.run for model in models if model.run}
    evaluated = read_evaluated(list(runs.values()))
    scores = {}
    for model in models:
        if model.run is None:
            continue
        of_run = evaluated[model.run.pk]
        metric = best_metric(
            model.run, [name for name in of_run if is_score_name(name)]
        )
        series = of_run.get(metric, NONE)
        by_step = dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))
        if model.step in by_step:
            scores[model.pk] = metric, by_step[model.step]
    return scores


def is_score_name(name: str) -> bool:
    """Tell whether higher is better; bounds of intervals do not count."""
    return is_score(name.rpartition("/")[2])


def fork_point_name(step: int) -> str:
    """Name a fork's first checkpoint, from before its first attempt."""
    return f"step-{step:06d}-attempt-0"


def fork_point_of(run: Run, directory: RunDirectory) -> Path:
    """Find the folder of the checkpoint that a fork continues from."""
    assert run.fork_step is not None, "not a fork"
    return directory.checkpoints / fork_point_name(run.fork_step)


def add_fork_point(run: Run, checkpoint: Checkpoint) -> None:
    """Record the fork point as the fork's own first checkpoint."""
    Checkpoint.objects.create(
        run=run,
        step=checkpoint.step,
        attempt=0,
        name=fork_point_name(checkpoint.step),
        sha256=checkpoint.sha256,
        num_bytes=checkpoint.num_bytes,
        saved_at=checkpoint.saved_at,
    )


def take_checkpoint(
    run_id: int,
    name: str,
    target: Path,
    *,
    sha256: str,
    on_progress: Callable[[], None] = lambda: None,
) -> None:
    """Link or copy a checkpoint of this run into `target`, all files or none.

    Checkpoints are never written to, so two runs can share files. Raises ValueError if
    the checkpoint was deleted or changed.
    """
    source = CheckpointStore(run_id).find(name)
    if source is None:
        raise FilesGone(gone(name))
    try:
        manifest, found = read_manifest(source)
    except Damaged as error:
        if not source.is_dir():  # deleted meanwhile
            raise FilesGone(gone(name)) from error
        raise
    if found != sha256:
        raise UserError(
            "checkpoints.changed",
            f"The manifest of checkpoint {name} changed: its SHA-256 differs from the "
            "recorded one. Fork from another checkpoint.",
        )
    link_files(
        source,
        target,
        [*manifest.files, MANIFEST],
        link=partial(link_or_copy, purpose="forking this run", on_progress=on_progress),
    )


@contextmanager
def fork_draft(checkpoint: Checkpoint) -> Iterator[Path | None]:
    """Make the folder of a new fork, with its checkpoint; deleted unless moved.

    Taken at once, so that the fork can wait while the parent deletes checkpoints. None
    if this machine cannot read the parent's files: then a worker takes them.
    """
    if not CheckpointStore(checkpoint.run_id).is_seen:
        yield None
        return
    draft = RunDirectory(
        run_directory(checkpoint.run_id).path.parent / f".fork-{uuid4().hex}"
    )
    draft.checkpoints.mkdir(parents=True)
    try:
        target = draft.checkpoints / fork_point_name(checkpoint.step)
        name, sha256 = checkpoint.name, checkpoint.sha256
        take_checkpoint(checkpoint.run_id, name, target, sha256=sha256)
        yield draft.path
    finally:
        shutil.rmtree(draft.path, ignore_errors=True)
