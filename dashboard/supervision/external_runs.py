"""Opening runs of external trainers, and further attempts from a step."""

from __future__ import annotations

import json
import math
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import F
from django.db.models.functions import Now
from pydantic import BaseModel, Field

from cohort.lines import plain
from dashboard.accounts.members import check_runs
from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.project.database import clean_json, clean_text
from dashboard.project.errors import UserError
from dashboard.runs.attributes import read_tags, refuse_locked
from dashboard.runs.models import ENDED, Run, RunAttempt, RunState
from dashboard.runs.progress import CONTACT
from dashboard.runs.state import EXTENDED, transition
from dashboard.supervision.external_events import (
    MAX_RULES,
    MAX_SETTINGS_BYTES,
    MAX_STEP,
    QuotaExceeded,
    RunEnded,
)
from dashboard.supervision.lease import Claim, close_attempt
from dashboard.supervision.takeover import cut_history


class Opening(BaseModel):
    """A trainer's report about a run before its first step."""

    key: UUID = Field(
        description="A UUID chosen by the trainer. The same key opens the same run.",
        examples=["0b6ac47e-7e2c-4a39-9f4e-1b1c2d3e4f50"],
    )
    name: str = Field(examples=["grpo-gsm8k"])
    tool: str = Field(examples=["TRL"])
    version: str = Field(
        default="", description="Version of the tool.", examples=["1.16.0"]
    )
    model: str = Field(default="", examples=["Qwen/Qwen3-0.6B"])
    host: str = Field(default="", examples=["node-3"])
    num_steps: int = 1
    settings: dict[str, Any] = Field(
        default={},
        description="Training settings. Cohort shows and compares them unchanged.",
        examples=[{"learning_rate": 1e-6, "beta": 0.0}],
    )
    rules: dict[str, float] = Field(
        default={},
        description="Reward rules and their weights. Default weight: 1.",
        examples=[{"accuracy": 1.0, "format": 0.2}],
    )
    right_from: float | None = Field(
        default=None,
        description="Minimum reward of a correct completion.",
        examples=[1.0],
    )
    tags: list[str] = Field(default=[], examples=[["baseline"]])
    notes: str = Field(default="", examples=[""])


def open_run(opening: Opening, *, team: Team, user: User | None) -> tuple[Run, bool]:
    """Return the run, and whether it is new.

    ValueError names the invalid field; QuotaExceeded: the team's quota of runs is
    reached.
    """
    _check(opening)
    runs = Run.objects.filter(team=team, source__key=str(opening.key))
    if run := runs.first():
        return run, False
    try:
        with transaction.atomic():
            return _make(opening, team, user), True
    except IntegrityError:
        # The same opening came twice at once; any other conflict is a bug.
        if run := runs.first():
            return run, False
        raise


def _check(opening: Opening) -> None:
    _check_text("name", opening.name, most=80, may_be_empty=False)
    _check_text("tool", opening.tool, most=40, may_be_empty=False)
    _check_text("version", opening.version, most=40)
    _check_text("model", opening.model, most=200)
    _check_text("host", opening.host, most=120)
    _check_text("notes", opening.notes, most=20_000)
    read_tags(",".join(opening.tags))
    if not 1 <= opening.num_steps <= MAX_STEP:
        raise UserError(
            "external_runs.bad_num_steps",
            f"num_steps must be from 1 to {MAX_STEP:,}; got {opening.num_steps:,}.",
        )
    if len(opening.rules) > MAX_RULES:
        raise UserError(
            "external_runs.too_many_rules",
            f"rules may have at most {MAX_RULES} entries; got {len(opening.rules):,}.",
        )
    for name, weight in opening.rules.items():
        _check_text("A rule name", name, most=40, may_be_empty=False)
        if not math.isfinite(weight):
            raise UserError(
                "external_runs.bad_weight",
                f"rules: the weight of {name!r} must be finite.",
            )
    if opening.right_from is not None and not math.isfinite(opening.right_from):
        raise UserError(
            "external_runs.bad_right_from",
            "right_from must be a finite number or null.",
        )
    size = len(json.dumps(opening.settings, default=str).encode())
    if size > MAX_SETTINGS_BYTES:
        raise UserError(
            "external_runs.settings_too_large",
            f"settings may have at most {MAX_SETTINGS_BYTES:,} bytes as JSON; got "
            f"{size:,}. Leave out the longest.",
        )


def _check_text(name: str, text: str, *, most: int, may_be_empty: bool = True) -> None:
    if len(text) > most or not (text.strip() or may_be_empty):
        least = 0 if may_be_empty else 1
        raise UserError(
            "external_runs.bad_length",
            f"{name} must have {least} to {most:,} characters; got {len(text):,}.",
        )
    if "\n" in text and name != "notes":
        raise UserError(
            "external_runs.not_one_line", f"{name} must be one line; got {text!r}."
        )


def _check_quota(team: Team) -> None:
    try:
        check_runs(team)
    except ValueError as error:
        raise QuotaExceeded(str(error)) from None


def _make(opening: Opening, team: Team, user: User | None) -> Run:
    _check_quota(team)
    rules = [
        {"name": clean_text(name), "weight": weight}
        for name, weight in opening.rules.items()
    ]
    run = Run.objects.create(
        team=team,
        name=clean_text(opening.name),
        owner=user,
        notes=clean_text(opening.notes),
        tags=read_tags(",".join(opening.tags)),
        state=RunState.RUNNING,
        config={
            "reward": {"recipe": {"rules": rules}, "right_from": opening.right_from},
            "checkpoint": {"keep_last": 0},
            "settings": clean_json(plain(opening.settings)),
        },
        model_label=clean_text(opening.model) or "–",
        num_steps=opening.num_steps,
        attempt=1,
        lease_until=Now() + CONTACT,
        started_at=Now(),
        source={
            "kind": "outside",
            "key": str(opening.key),
            "tools": [clean_text(opening.tool)],
            "version": clean_text(opening.version),
            "host": clean_text(opening.host),
        },
    )
    _begin_attempt(run, opening.host)
    record(run.team, user, "run.opened", run, tool=opening.tool)
    return run


def _begin_attempt(run: Run, host: str) -> None:
    RunAttempt.objects.create(
        run=run, number=run.attempt, worker=clean_text(host)[:120], claimed_at=Now()
    )


@transaction.atomic
def open_attempt(run: Run, *, from_step: int, host: str = "", user: User | None) -> int:
    """Start another attempt, which continues after `from_step`; returns its number.

    Later steps of the previous attempt are superseded, and its further events are
    refused.
    """
    run = (
        Run.objects.select_for_update(of=("self",))
        .select_related("team")
        .get(pk=run.pk)
    )
    if not 0 <= from_step <= run.last_step:
        raise UserError(
            "external_runs.bad_from_step",
            f"from_step must be from 0 to {run.last_step:,}, the last stored step; "
            f"got {from_step:,}. Send the earlier lines first.",
        )
    try:
        refuse_locked(run)
    except ValueError as error:
        raise RunEnded(str(error)) from None
    if run.archived_at is not None:
        raise RunEnded(f"{run.name} is archived. Unarchive it to continue training.")
    close_attempt(
        run.pk, run.attempt, f"replaced by another attempt from step {from_step}"
    )
    _make_running(run, user)
    run.refresh_from_db(fields=["attempt"])
    _begin_attempt(run, host)
    cut_history(
        Claim(run_id=run.pk, attempt=run.attempt), after=from_step, checkpoint=None
    )
    return run.attempt


def _make_running(run: Run, user: User | None) -> None:
    fields: dict[str, Any] = {
        "attempt": F("attempt") + 1,
        "lease_until": Now() + CONTACT,
    }
    if run.state == RunState.RUNNING:
        Run.objects.filter(pk=run.pk).update(**fields)
        record(run.team, user, "run.resumed", run)
        return
    verb = EXTENDED if run.state in ENDED else "run.resumed"
    if run.state in ENDED:
        _check_quota(run.team)
        fields |= {"finished_at": None, "fail_reason": "", "stop_reason": ""}
    transition(
        run.pk,
        sources=[RunState(run.state)],
        target=RunState.RUNNING,
        actor=user,
        verb=verb,
        **fields,
    )
