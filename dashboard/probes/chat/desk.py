"""A training worker's desk: it answers questions one by one, beside what is trained.

A thread of the worker's main process asks the database, which is the queue, twice a
second. Models lie in a process of their own. While the worker holds a run, its GPU is
the run's: the models then answer on the CPU.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from typing import Any

from django.db import DatabaseError, connection
from django.db.models.functions import Now

from dashboard.datasets.models import DatasetRow
from dashboard.probes.chat.news import change
from dashboard.probes.chat.services import reap
from dashboard.probes.chat.warm import CannotAnswer, Models
from dashboard.probes.chat.watch import (
    LEASE,
    LOOK_SECONDS,
    Claim,
    Ended,
    PutBack,
    Watch,
    read,
)
from dashboard.probes.models import Chat, ProbeState
from dashboard.rewards.trial import try_samples
from dashboard.rewards.workbench import as_sample
from dashboard.runs.checkpoints.shelf import MODEL, Shelf
from dashboard.runs.models import HELD as HELD_STATES
from dashboard.runs.models import Run
from dashboard.samples.cleaning import clean_json, clean_text
from trainer.config import RunConfig
from trainer.rewards.child import NoReply

logger = logging.getLogger(__name__)
HUSH_SECONDS = 5.0  # to give up a question that was stopped
SCORE_SECONDS = 20.0


class Desk:
    """One of a worker."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._models: Models | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="chat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(timeout=10)

    def _work(self) -> None:
        try:
            while not self._end.wait(LOOK_SECONDS):
                try:
                    self.look()
                except DatabaseError as error:
                    logger.warning("Questions wait for the database: %s", error)
                    connection.close()
        finally:
            self.forget_models()
            connection.close()

    def look(self) -> None:
        """Answer the oldest question that this worker can, if there is one."""
        reap()
        if self._models and (self._models.is_stale or self._must_leave_gpu()):
            self.forget_models()
        claim = self._claim_next()
        if claim is not None:
            self._see_through(claim)

    def forget_models(self) -> None:
        if self._models is not None:
            self._models.end()
        self._models = None

    def _claim_next(self) -> Claim | None:
        waiting = Chat.objects.filter(state=ProbeState.QUEUED).order_by("id")
        for chat in waiting.select_related("checkpoint")[:10]:
            if Shelf(chat.checkpoint.run_id).find(chat.checkpoint.name) is None:
                self._leave(chat)
                continue
            claim = Claim(chat.pk, uuid.uuid4())
            if change(
                chat.pk,
                Chat.objects.filter(state=ProbeState.QUEUED),
                state=ProbeState.RUNNING,
                worker=self._worker,
                claim=claim.token,
                lease_until=Now() + LEASE,
                notice="",
            ):
                return claim
        return None

    def _leave(self, chat: Chat) -> None:
        notice = (
            f"Waiting: {self._worker} does not see {chat.checkpoint.name} of run "
            f"{chat.checkpoint.run_id}. If no worker does, its files are gone."
        )
        if chat.notice != notice:
            change(chat.pk, Chat.objects.all(), notice=notice)

    def _see_through(self, claim: Claim) -> None:
        chat = Chat.objects.select_related("checkpoint__run").get(pk=claim.chat_id)
        try:
            self._answer(claim, chat)
        except Ended:
            self._hush(chat)
            _end(claim, chat, ProbeState.STOPPED)
        except PutBack:
            self.forget_models()
            notice = "Put back: its worker needed the GPU, or ended. It begins anew."
            _free(claim, notice)
        except (NoReply, CannotAnswer) as error:
            self.forget_models()
            _end(claim, chat, ProbeState.FAILED, error=_explain(error))
        except DatabaseError:
            self.forget_models()  # what it says to this question is for no other
            raise
        else:
            _end(claim, chat, ProbeState.FINISHED)

    def _answer(self, claim: Claim, chat: Chat) -> None:
        watch = Watch(claim, must_let_go=self._must_let_go)
        models = self._ready(chat, watch)
        # One that was put back begins anew.
        chat.answers = [
            {"completions": [None for _ in a["completions"]]} for a in chat.answers
        ]
        models.child.write(chat.question)
        while not (told := read(models, watch)).get("done"):
            _take(chat, told)
            if not change(
                chat.pk,
                claim.row.filter(state=ProbeState.RUNNING),
                answers=chat.answers,
                lease_until=Now() + LEASE,
            ):
                raise Ended
        models.used_at = time.monotonic()

    def _hush(self, chat: Chat) -> None:
        """Have the models give up the question; what they had is taken in."""
        models = self._models
        if models is None or not models.is_loaded:
            self.forget_models()
            return
        until = time.monotonic() + HUSH_SECONDS
        try:
            models.child.write({"stop": True})
            told: dict[str, Any] = {}
            while not told.get("done"):
                left = max(0.0, until - time.monotonic())
                told = models.child.read(timeout_seconds=left)
                _take(chat, told)
        except NoReply:
            self.forget_models()
        models.used_at = time.monotonic()

    def _ready(self, chat: Chat, watch: Watch) -> Models:
        found = Shelf(chat.checkpoint.run_id).find(chat.checkpoint.name)
        if found is None:
            raise CannotAnswer(f"The files of {chat.checkpoint.name} are gone.")
        run = chat.checkpoint.run
        base = run.config["model"]
        paths = (str(found / MODEL), str(base["path"]))
        device = "cpu" if self._trains() else "auto"
        held = self._models
        if held and held.is_loaded and not held.is_stale and held.paths == paths:
            return held
        self.forget_models()
        models = self._models = Models(
            paths, revision=base.get("revision"), device=device
        )
        loaded = read(models, watch)
        if "problem" in loaded and not found.is_dir():
            raise CannotAnswer(
                f"{found.name} was deleted while its model was loading: the run keeps "
                "its newest checkpoints. Ask a newer one, or pin it first."
            )
        if "problem" in loaded:
            raise CannotAnswer(str(loaded["problem"]))
        models.device, models.is_loaded = str(loaded["device"]), True
        return models

    def _trains(self) -> bool:
        held = Run.objects.filter(worker=self._worker, state__in=list(HELD_STATES))
        return held.exists()

    def _must_let_go(self) -> bool:
        return self._end.is_set() or self._must_leave_gpu()

    def _must_leave_gpu(self) -> bool:
        models = self._models
        return models is not None and models.device != "cpu" and self._trains()


def _take(chat: Chat, told: dict[str, Any]) -> None:
    if "model" not in told:
        return
    answer = chat.answers[told["model"]]
    if "problem" in told:
        answer["problem"] = clean_text(str(told["problem"]))
        return
    for place, written in told.get("written", {}).items():
        found = clean_json(written) | {"end_reason": None}
        answer["completions"][int(place)] = found
    if "completion" not in told:
        return
    completion = clean_json(told["completion"])
    if not any(chat.question["turns"]):  # the answer is known of the prompt alone
        completion |= _score(chat, told["completion"]["text"])
    answer["completions"][told["place"]] = completion


def _score(chat: Chat, text: str) -> dict[str, Any]:
    """By the run's recipe, as the run's first step would."""
    config = RunConfig.model_validate(chat.checkpoint.run.config).stages[0].config
    given = chat.question["row"]
    is_chat = not isinstance(given["prompt"], str)
    row = DatasetRow(answer=given["answer"], columns=given["columns"])
    row.prompt, row.is_chat = _stored(given["prompt"]), is_chat
    (trial,) = try_samples(
        config.reward.recipe,
        [as_sample(row, text)],
        seconds=SCORE_SECONDS,
        owner=f"team {chat.team_id}",
    )
    if trial.score is None:
        return {"reward": None, "rules": {}, "errors": {"recipe": trial.problem}}
    score = trial.score
    found = {"reward": score.total, "rules": score.rules, "errors": score.errors}
    cleaned: dict[str, Any] = clean_json(found)
    return cleaned


def _stored(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else json.dumps(prompt)


def _explain(error: Exception) -> str:
    if isinstance(error, NoReply):
        return (
            f"The models' process was lost: {error}. Where it was ended by SIGKILL, "
            "memory was short: ask for fewer completions, or wait."
        )
    return str(error)


def _end(claim: Claim, chat: Chat, state: ProbeState, *, error: str = "") -> None:
    """What was answered so far stays, whatever the end."""
    change(
        chat.pk,
        claim.row,
        state=state,
        answers=chat.answers,
        error=clean_text(error),
        finished_at=Now(),
    )


def _free(claim: Claim, notice: str) -> None:
    held = claim.row.filter(state=ProbeState.RUNNING)
    if not change(
        claim.chat_id,
        held,
        state=ProbeState.QUEUED,
        claim=None,
        lease_until=None,
        notice=notice,
    ):
        change(claim.chat_id, claim.row, state=ProbeState.STOPPED, finished_at=Now())
