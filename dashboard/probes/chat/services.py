"""What people ask of a checkpoint and its base model."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.datasets.models import DatasetRow
from dashboard.probes.chat.news import change
from dashboard.probes.models import HELD, OPEN, Chat, ProbeState
from dashboard.runs.models import Checkpoint
from dashboard.training.workers import list_devices
from trainer.config import RunConfig

MAX_OPEN = 20  # of everybody, waiting or running
MAX_OPEN_OF_A_TEAM = 3
MAX_SAMPLES = 8
MAX_TOKENS = 4_096
MAX_CHARS = 50_000
MAX_TURNS = 20
KEPT = timedelta(days=7)


class TooMany(ValueError):
    """The text is for the user."""


@transaction.atomic
def ask(
    *,
    checkpoint: Checkpoint,
    user: User,
    row: DatasetRow,
    num_samples: int,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    previous: Chat | None = None,
    reply: str = "",
) -> Chat:
    """Queue one question. With `previous` its conversation goes on with `reply`.

    Raises:
        TooMany: of open questions, or turns.
    """
    team = checkpoint.run.team
    _check_open(team)
    Chat.objects.filter(team=team, created_at__lt=timezone.now() - KEPT).delete()
    config = RunConfig.model_validate(checkpoint.run.config)
    data = config.data.model_dump(mode="json", exclude={"rows", "num_eval_rows"})
    chat = Chat.objects.create(
        team=team,
        created_by=user,
        checkpoint=checkpoint,
        position=row.position,
        previous=previous,
        question={
            "row": _values(row),
            "turns": _turns(previous, reply),
            "data": data,
            "seed": seed,
            "num_samples": num_samples,
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
        },
        answers=[{"completions": [None] * num_samples} for _ in range(2)],
    )
    detail = {"run": checkpoint.run_id, "checkpoint": checkpoint.name}
    record(team, user, "chat.asked", chat, **detail)
    return chat


def _check_open(team: Team) -> None:
    num_open = Chat.objects.filter(state__in=OPEN).count()
    own = Chat.objects.filter(state__in=OPEN, team=team).count()
    if own >= MAX_OPEN_OF_A_TEAM or num_open >= MAX_OPEN:
        raise TooMany(
            f"{own} questions of {team} and {num_open} in all wait for an answer, of "
            f"{MAX_OPEN_OF_A_TEAM} and {MAX_OPEN} that may. Stop one, or wait."
        )


def _values(row: DatasetRow) -> dict[str, Any]:
    return {
        "prompt": row.prompt_value,
        "answer": row.answer,
        "columns": row.columns,
    }


def _turns(previous: Chat | None, reply: str) -> list[list[dict[str, str]]]:
    """What each model has said so far: the first of its completions counts."""
    if previous is None:
        return [[], []]
    turns = []
    for said, answer in zip(previous.question["turns"], previous.answers, strict=True):
        first = next((c["text"] for c in answer["completions"] if c), None)
        if first is None:
            raise TooMany("A model has not answered. Ask again, and reply to both.")
        own = [
            {"role": "assistant", "content": first},
            {"role": "user", "content": reply},
        ]
        turns.append([*said, *own])
    if len(turns[0]) > 2 * MAX_TURNS:
        raise TooMany(f"A conversation has {MAX_TURNS} turns at most. Begin anew.")
    return turns


@transaction.atomic
def stop(chat: Chat, user: User) -> None:
    """What was answered so far stays."""
    waiting = Chat.objects.filter(state=ProbeState.QUEUED)
    running = Chat.objects.filter(state=ProbeState.RUNNING)
    if change(chat.pk, waiting, state=ProbeState.STOPPED, finished_at=Now()) or change(
        chat.pk, running, state=ProbeState.STOPPING
    ):
        record(chat.team, user, "chat.stop_requested", chat)


def reap() -> None:
    """Fail what no worker holds any more; what it has answered stays."""
    lost = Chat.objects.filter(state__in=HELD, lease_until__lt=Now())
    for chat_id in lost.values_list("pk", flat=True):
        change(
            chat_id,
            lost,
            state=ProbeState.FAILED,
            error="Its worker died or lost the database. Ask again.",
            finished_at=Now(),
        )


def what_it_waits_for(chat: Chat) -> str:
    if chat.state != ProbeState.QUEUED:
        return ""
    if not list_devices():
        return "No training worker is there to answer. Start one."
    before = Chat.objects.filter(state__in=OPEN, pk__lt=chat.pk).count()
    if chat.notice:
        return chat.notice
    if before:
        return f"Waiting: number {before + 1} in the queue."
    return "Waiting for a training worker to take it."


def sampling_of(config: dict[str, Any]) -> dict[str, Any]:
    """What a run samples with, within what a page can wait for."""
    rollout = RunConfig.model_validate(config).stages[0].config.rollout
    return {
        "temperature": rollout.temperature,
        "max_new_tokens": min(rollout.max_new_tokens, MAX_TOKENS),
    }
