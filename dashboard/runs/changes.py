"""Changing a run's settings after its launch: its steps, intervals and retention."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import transaction
from django.db.models import F, Max
from django.http import QueryDict
from pydantic import ValidationError

from dashboard.accounts.members import check_runs
from dashboard.accounts.models import User
from dashboard.accounts.services import describe_change, record
from dashboard.live.pubsub import notify_on_commit
from dashboard.project.database import read_whole
from dashboard.project.errors import UserError
from dashboard.project.schema_forms import SchemaField
from dashboard.runs.attributes import refuse_locked
from dashboard.runs.checkpoints.listing import resumable
from dashboard.runs.config.fields import all_fields
from dashboard.runs.launch.base_models import lock_published, versions_of
from dashboard.runs.models import Run, RunState, SettingChange
from dashboard.runs.queries import settings_in
from dashboard.runs.state import EXTENDED, notify_workers, transition
from dashboard.web.edits import Base, find_changes, read_fields
from trainer.config import MAY_CHANGE, RunConfig, change_settings

STEPS = "optim.num_steps"
ENDED_WELL = (RunState.FINISHED, RunState.STOPPED)
CHANGEABLE = (
    RunState.QUEUED,
    RunState.STARTING,
    RunState.RUNNING,
    RunState.PAUSING,
    RunState.PAUSED,
    RunState.LOST,
)

MAX_STEPS = 10_000_000


def setting_of(config: Mapping[str, object], path: str) -> int:
    value = settings_in(config)
    part, name = path.split(".")
    setting: int = getattr(getattr(value, part), name)
    return setting


def first_config(run: Run) -> RunConfig:
    """Return the launch settings: trainers start with them, then apply the changes."""
    config = RunConfig.model_validate(run.config)
    for change in run.changes.order_by("-number"):
        config = change_settings(config, change.before)
    return config


@transaction.atomic
def change_run(
    *, run: Run, user: User, settings: Mapping[str, int], base: Base = ""
) -> SettingChange:
    """Change intervals and retention of a run that has not ended.

    UserError: it has ended, or a value is invalid. EditConflict: a setting was changed
    since `base`.
    """
    assert STEPS not in settings, "extend_run"
    assert set(settings) <= set(MAY_CHANGE)
    locked = _lock(run)
    if locked.state not in CHANGEABLE:
        raise UserError(
            "runs.not_changeable",
            f"The run is {locked.state}, so its settings cannot change.",
        )
    return _change(
        locked,
        user,
        find_changes(intervals_of(locked), settings, base),
        verb="run.settings_changed",
    )


@transaction.atomic
def extend_run(*, run: Run, user: User, num_steps: int) -> None:
    """Let a run continue to step `num_steps`.

    A finished or stopped run is queued again, from its last checkpoint.
    UserError: it cannot continue, or its last step is already as late.
    """
    locked = _lock(run)
    if locked.state in ENDED_WELL:
        _queue_again(locked, user, num_steps)
    elif locked.state not in CHANGEABLE:
        raise UserError(
            "runs.not_extendable",
            f"The run is {locked.state}, so it cannot be extended. "
            + (
                "Fork it from its last checkpoint."
                if locked.state == RunState.FAILED
                else "Wait until it has stopped."
            ),
        )
    elif num_steps <= locked.num_steps:
        raise UserError(
            "runs.not_longer",
            f"The run already ends at step {locked.num_steps:,}; got {num_steps:,}. "
            "Enter a later step, or stop the run to end it earlier.",
        )
    else:
        _change(locked, user, {STEPS: num_steps}, verb=EXTENDED)


def _lock(run: Run) -> Run:
    """UserError if it is locked, in the trash, or imported."""
    if run.is_imported:
        raise UserError("runs.not_trained_here", explain_not_trained_here(run))
    locked = (
        Run.objects.select_for_update(of=("self",))
        .select_related("team", "locked_by")
        .get(id=run.id)
    )
    refuse_locked(locked)
    return locked


def explain_not_trained_here(run: Run) -> str:
    return (
        f"The run {run.source_text}, so it has no settings and no checkpoint that can "
        "change."
    )


def _queue_again(run: Run, user: User, num_steps: int) -> None:
    saved = resumable(run)
    if saved is None:
        raise UserError(
            "runs.no_checkpoint", "The run has no checkpoint. Clone it instead."
        )
    if num_steps <= saved.step:
        raise UserError(
            "runs.before_checkpoint",
            f"The last checkpoint is from step {saved.step:,}, so the last step must "
            f"be {saved.step + 1:,} or later; got {num_steps:,}.",
        )
    check_runs(run.team)
    # It may be unpublished since the run ended.
    lock_published(run.team, run.config, versions_of(run))
    if num_steps != run.num_steps:
        _change(run, user, {STEPS: num_steps}, verb="run.settings_changed")
    moved = transition(
        run.id,
        sources=ENDED_WELL,
        target=RunState.QUEUED,
        actor=user,
        verb=EXTENDED,
        detail={"num_steps": num_steps, "from_step": saved.step},
        finished_at=None,
        archived_at=None,
        archived_by=None,
        stop_reason="",
        num_losses=0,
        not_before=None,
    )
    assert moved, "its row is locked"
    transaction.on_commit(notify_workers)


def _change(
    run: Run, user: User, settings: Mapping[str, int], *, verb: str
) -> SettingChange:
    before = {path: setting_of(run.config, path) for path in settings}
    after = {p: value for p, value in settings.items() if value != before[p]}
    if not after:
        raise UserError("runs.unchanged", "The run already has these settings.")
    try:
        config = change_settings(RunConfig.model_validate(run.config), after)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise UserError("runs.bad_setting", f"{where}: {fault['msg']}.") from None
    last: int | None = run.changes.aggregate(last=Max("number"))["last"]
    change = SettingChange.objects.create(
        run=run,
        number=(last or 0) + 1,
        before={path: before[path] for path in after},
        after=after,
        actor=user,
    )
    Run.objects.filter(id=run.id).update(
        config=config.model_dump(mode="json"),
        num_steps=config.optim.num_steps,
        seq=F("seq") + 1,
    )
    detail = describe_change(before, after)
    record(run.team, user, verb, run, number=change.number, **detail)
    notify_on_commit(run.id, run.seq + 1)
    return change


def interval_fields() -> list[SchemaField]:
    """List the settings that may change besides the number of steps."""
    return [all_fields()[path] for path in MAY_CHANGE if path != STEPS]


def next_step(run: Run) -> int:
    """Return the first step that an extension could change."""
    if run.state not in ENDED_WELL:
        return run.last_step + 1
    saved = resumable(run)
    return saved.step + 1 if saved else 1


def propose_steps(text: str, run: Run) -> int | None:
    """Return the last step to preview, None if empty. UserError: it is out of range."""
    text = text.strip().replace(",", "")
    if not text:
        return None
    lowest = next_step(run) if run.state in ENDED_WELL else run.num_steps + 1
    number = read_whole(text, digits=8) or 0
    if lowest <= number <= MAX_STEPS:
        return number
    raise UserError(
        "runs.bad_last_step",
        f"The last step must be a whole number from {lowest:,} to {MAX_STEPS:,}; got "
        f"{text[:40]!r}.",
    )


def read_steps(text: str) -> int:
    """UserError: it is not a whole number."""
    return _read_whole(text, "The last step")


def intervals_of(run: Run) -> dict[str, int]:
    return {
        field.path: setting_of(run.config, field.path) for field in interval_fields()
    }


def read_intervals(posted: QueryDict) -> dict[str, int]:
    """UserError: one is not a whole number."""
    titles = {field.path: field.title for field in interval_fields()}
    return {
        path: _read_whole(text, titles[path])
        for path, text in read_fields(posted, titles).items()
        if text.strip()
    }


def _read_whole(text: str, what: str) -> int:
    number = read_whole(text.strip(), digits=8)
    if number is None:
        raise UserError(
            "runs.not_a_number",
            f"{what} must be a whole number; got {text.strip()[:40]!r}.",
        )
    return number
