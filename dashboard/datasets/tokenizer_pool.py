"""Processes of the engine that keep a tokenizer loaded while it is in use.

One without a model replies as an environment.
Loading takes seconds, rendering a prompt milliseconds. A process belongs to one team
and model, answers one request at a time, and ends by itself after a minute without any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from django.conf import settings

from dashboard.project.environment import hub_variables
from trainer.config import CODE_OPTIONS, GENERIC_TASKSETS
from trainer.rewards.child import Child, NoReply

if TYPE_CHECKING:  # the process of generators has no Django
    from dashboard.datasets.models import DatasetVersion

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


def refuse_environment(
    environment: Mapping[str, Any], versions: Iterable[DatasetVersion] = ()
) -> str:
    """Return why an environment's code may not run here; "" if it may.

    An operator who allows a taskset by its name allows the code of that one alone, with
    rows of `versions` that it made: others can name commands in column task.
    """
    if environment.get("kind") != "verifiers" or "*" in settings.TASKSETS:
        return ""
    taskset = str(environment.get("taskset", ""))
    if taskset not in settings.TASKSETS:
        return (
            f"The taskset {taskset[:200]!r} is not allowed: its code runs without a "
            "sandbox. Have an operator add it to COHORT_TASKSETS."
        )
    # As verifiers reads owner/name@version.
    module = taskset.rpartition("/")[2].partition("@")[0].replace("-", "_").lower()
    if module in GENERIC_TASKSETS:
        return (
            f"The taskset {taskset!r} is not allowed by its name: it runs code that "
            "options and rows name. Have an operator set COHORT_TASKSETS to *."
        )
    if refused := sorted({*code_options(environment.get("options"))}):
        return (
            f"The taskset options {', '.join(refused)} are not allowed: they can name "
            "code or files outside of the taskset. Remove them, or have an operator "
            "set COHORT_TASKSETS to *."
        )
    for version in versions:
        made = _made_by(version)
        options = {"options": made.get("options")}
        if made.get("task") != taskset or refuse_environment(
            {**environment, **options}
        ):
            return (
                f"The rows of {version} are not allowed with the taskset {taskset!r}: "
                "they are not as it made them here, and column task can name commands. "
                "Make rows by Use an environment, or have an operator set "
                "COHORT_TASKSETS to *."
            )
    return ""


def code_options(value: Any, name: str = "") -> Iterator[str]:
    """Yield the names of options that can name code, a file or a server.

    An empty one names nothing. A text with a slash can be a path or a URL, and a
    `prompt` inside another option is a file's name.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in CODE_OPTIONS or (name and key == "prompt"):
                yield from [key] if inner else ()
            else:
                yield from code_options(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from code_options(inner, name)
    elif isinstance(value, str) and "/" in value:
        yield name


def without_code(default: Any) -> Any:
    """Return an option's default without what a person may not set inside it."""
    if not isinstance(default, dict):
        return default
    return {
        key: without_code(inner)
        for key, inner in default.items()
        if key not in CODE_OPTIONS
        and (isinstance(inner, dict) or not [*code_options({key: inner}, "inner")])
    }


def _made_by(version: DatasetVersion) -> dict[str, Any]:
    """Return the taskset's source of rows that are as it made them; else {}.

    Views, splits and selections of a run copy whole rows of their parent.
    """
    source = version.source
    while source.get("kind") in ("view", "split", "run"):
        parent = (
            type(version)
            .objects.filter(
                pk=source.get("parent_id"), content_sha256=source.get("parent_sha256")
            )
            .first()
        )
        source = parent.source if parent else {}
    return source if source.get("kind") == "taskset" else {}


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
