"""Processes of the engine that keep a tokenizer loaded while it is in use.

One without a model replies as an environment.
Loading takes seconds, rendering a prompt milliseconds. A process belongs to one team
and model, answers one request at a time, and ends by itself after a minute without any.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Any

from django.conf import settings

from dashboard.project.environment import hub_variables
from trainer.config import CODE_OPTIONS
from trainer.rewards.child import Child, NoReply

LOAD_SECONDS = 120.0  # includes the download from the Hub
RENDER_SECONDS = 10.0
WAIT_SECONDS = 1.0  # of a request, before its page polls
ABANDONED_SECONDS = 5.0  # since the last request; pages poll each second
MAX_PROCESSES = 3  # each takes 300 MB
MAX_PER_TEAM = 2

Answer = dict[str, Any]

LOADING = "Rendering the prompt. Loading the tokenizer takes a few seconds."
ALL_IN_USE = (
    "All tokenizers of this server are in use. Yours loads when one is free, which may "
    "take a few minutes."
)
OWN_IN_USE = (
    "Your team's tokenizers are in use for other models. This one loads when one of "
    "them is free."
)


class Busy(Exception):
    """The answer is not there yet: ask again. The message is for the user."""


class TokenizerProcess:
    """A process with a tokenizer, or one that is loading it."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.has_answered = False
        self.started_at = self.asked_at = time.monotonic()
        options = ("--model", model) if model else ()
        self.child = Child(
            *("trainer", "preview", *options),
            environment=(hub_variables() if model else {})
            | {"COHORT_ENVIRONMENTS_PYTHON": settings.TASKSETS_PYTHON},
        )
        self.is_closed = False
        self._is_loaded = False
        self._lock = threading.Lock()

    @property
    def is_in_use(self) -> bool:
        """A page polls for the first answer."""
        idle_seconds = time.monotonic() - self.asked_at
        return not self.has_answered and idle_seconds < ABANDONED_SECONDS

    def ask(self, question: dict[str, Any]) -> Answer:
        """Return the pieces of a prompt, or the problem, after which the process ends.

        Raises:
            Busy: the tokenizer is loading, or rendering another prompt.
        """
        self.asked_at = time.monotonic()
        if not self._lock.acquire(timeout=WAIT_SECONDS):
            raise Busy(LOADING)
        try:
            if self.is_closed:
                raise Busy(LOADING)
            reply = self._load() or self._render(question)
            self.has_answered = True
            return reply
        finally:
            self._lock.release()

    def _load(self) -> Answer:
        """Wait for the tokenizer; return the problem, or nothing once it is loaded."""
        if self._is_loaded:
            return {}
        try:
            reply = self.child.read(timeout_seconds=WAIT_SECONDS)
        except NoReply as error:
            is_overdue = time.monotonic() - self.started_at > LOAD_SECONDS
            if self.child.is_alive() and not is_overdue:
                raise Busy(LOADING) from None
            why = f"it timed out after {LOAD_SECONDS:g} s" if is_overdue else error
            reply = {
                "problem": f"The tokenizer of {self.model} failed to load: {why}. The "
                "preview needs the training engine on the web server; without it, read "
                "the prompts in the run's log."
                if self.model
                else f"The environment's process failed to start: {why}. A try needs "
                "the training engine on the web server."
            }
        self._is_loaded = True
        if reply:
            self._end()
        return reply

    def _render(self, question: dict[str, Any]) -> Answer:
        try:
            self.child.write(question)
            return self.child.read(timeout_seconds=RENDER_SECONDS)
        except NoReply as error:
            self._end()
            return {
                "problem": f"Cohort could not render this prompt: {error}. Try a "
                "shorter prompt, or no chat template."
                if self.model
                else f"The environment did not reply: {error}."
            }

    def _end(self) -> None:
        self.is_closed = True
        self.child.end()

    def close(self) -> bool:
        """End the process unless it is rendering."""
        if not self._lock.acquire(blocking=False):
            return False
        self._end()
        self._lock.release()
        return True


def refuse_environment(environment: Mapping[str, Any]) -> str:
    """Return why an environment's code may not run here; "" if it may.

    An operator who allows a taskset by its name allows the code of that one alone.
    """
    if environment.get("kind") != "verifiers" or "*" in settings.TASKSETS:
        return ""
    taskset = str(environment.get("taskset", ""))
    if taskset not in settings.TASKSETS:
        return (
            f"The taskset {taskset[:200]!r} is not allowed: its code runs without a "
            "sandbox. Have an operator add it to COHORT_TASKSETS."
        )
    names: set[str] = set()
    options = json.dumps(environment.get("options"))
    json.loads(options, object_hook=names.update)
    if refused := sorted(names & CODE_OPTIONS):
        return (
            f"The taskset options {', '.join(refused)} are not allowed: they can name "
            "code outside of the taskset. Remove them, or have an operator set "
            "COHORT_TASKSETS to *."
        )
    return ""


class TokenizerPool:
    """All tokenizer processes of this server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.processes: dict[tuple[int, str], TokenizerProcess] = {}

    def ask(self, *, team_id: int, model: str, question: dict[str, Any]) -> Answer:
        """Return the pieces of a prompt, or the problem.

        Raises:
            Busy: there is no answer yet; the message says why.
        """
        if why := refuse_environment(question.get("environment") or {}):
            return {"problem": why}
        key = (team_id, model)
        with self._lock:
            process = self.processes.get(key)
            # The problem of one that ended while loading is still to be read.
            if process and not (process.is_in_use or process.child.is_alive()):
                process.close()
            if process is None or process.is_closed:
                self.processes.pop(key, None)
                self._make_room(team_id)
                process = self.processes[key] = TokenizerProcess(model)
        return process.ask(question)

    def _make_room(self, team_id: int) -> None:
        """End the process that waits longest for a request, if there are too many."""
        keys, why = list(self.processes), ALL_IN_USE
        own = [key for key in keys if key[0] == team_id]
        if len(own) >= MAX_PER_TEAM:
            keys, why = own, OWN_IN_USE
        elif len(keys) < MAX_PROCESSES:
            return
        for key in sorted(keys, key=lambda key: self.processes[key].asked_at):
            process = self.processes[key]
            if not process.is_in_use and process.close():
                del self.processes[key]
                return
        raise Busy(why)


# A child reads stdin to its end, so it also ends if the server is killed.
tokenizers = TokenizerPool()
