"""Processes of the engine that keep a tokenizer loaded for a minute.

Each process belongs to one team and model and has its own thread, so a view can wait
with a timeout. Idle processes end. If all are busy, teams without one take turns: a
team with several loses one at once, a team with one after TURN_SECONDS.
"""

from __future__ import annotations

import atexit
import json
import threading
import time
from collections import Counter, OrderedDict
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import Empty, Queue
from typing import Any

from dashboard.project.environment import hub_variables
from trainer.rewards.child import Child, NoReply

IDLE_SECONDS = 60.0
LOAD_SECONDS = 120.0  # includes the download from the Hub
RENDER_SECONDS = 10.0
CACHE_SECONDS = 10.0  # of answers after a process has ended; pages poll each second
MAX_PROCESSES = 3  # each takes 300 MB
MAX_PER_TEAM = 2
TURN_SECONDS = 150.0  # longer than loading a tokenizer
ABANDONED_SECONDS = 5.0  # without a poll, a waiting team loses its turn
MAX_QUESTIONS = 16  # of one process, pending and answered

Question = dict[str, Any]
Answer = dict[str, Any]
Key = tuple[int, str]  # team and model

ALL_IN_USE = (
    "All tokenizers of this server are in use. Yours loads when one is free, which may "
    "take a few minutes."
)
OTHERS_FIRST = "Other teams are waiting for a tokenizer. Yours loads after theirs."
OWN_IN_USE = (
    "Your team's tokenizers are in use for other models. This one loads when one of "
    "them is free."
)
UNLOADED = "The tokenizer was unloaded for another team. It loads again in its turn."


class Busy(Exception):
    """No process is free now: retry. The message is for the user."""


class TokenizerProcess:
    """A process with a tokenizer, its thread, and its recent requests."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._futures: OrderedDict[str, Future[Answer]] = OrderedDict()
        self.started_at = time.monotonic()
        self._queue: Queue[tuple[Question, Future[Answer]] | None] = Queue()
        self._lock = threading.Lock()
        self._child = Child(
            "trainer", "preview", "--model", model, environment=hub_variables()
        )
        self._ended_at: float | None = None
        self._problem = ""  # why the tokenizer could not be loaded
        threading.Thread(target=self._work, daemon=True).start()

    @property
    def is_idle(self) -> bool:
        with self._lock:
            return all(future.done() for future in self._futures.values())

    @property
    def has_ended(self) -> bool:
        return self._ended_at is not None

    def can_answer(self, question: Question) -> bool:
        """While it runs; afterwards for some seconds from its cache."""
        with self._lock:
            if self._ended_at is None:
                return True
            is_recent = time.monotonic() - self._ended_at < CACHE_SECONDS
            return is_recent and (
                bool(self._problem) or _key(question) in self._futures
            )

    def ask(self, question: Question) -> Future[Answer]:
        """The answer to come; equal questions share one while it is cached.

        Raises:
            Busy: too many requests are pending, or the process is ending.
        """
        key = _key(question)
        with self._lock:
            if key in self._futures:
                return self._futures[key]
            future: Future[Answer] = Future()
            if self._problem:
                future.set_result({"problem": self._problem})
                return future
            if self.has_ended:
                raise Busy("The tokenizer has stopped and is loading again.")
            self._drop_oldest()
            self._futures[key] = future
            self._queue.put((question, future))
            return future

    def _drop_oldest(self) -> None:
        if len(self._futures) < MAX_QUESTIONS:
            return
        done = next((key for key, one in self._futures.items() if one.done()), None)
        if done is None:
            raise Busy(f"{MAX_QUESTIONS} prompts of your team are ahead of this one.")
        del self._futures[done]

    def _work(self) -> None:
        problem = ""
        try:
            problem = self._load()
            while not problem:
                item = self._queue.get(timeout=IDLE_SECONDS)
                if item is None or not self._answer(*item):
                    break
        except Empty:
            pass  # no request for a minute
        finally:
            self._end(problem)

    def _load(self) -> str:
        """Why the tokenizer failed to load; "" if it is ready."""
        try:
            loaded = self._child.read(timeout_seconds=LOAD_SECONDS)
        except NoReply as error:
            return (
                f"The tokenizer of {self.model} failed to load: {error}. The preview "
                "needs the training engine on the web server; without it, read the "
                "prompts in the run's log."
            )
        return str(loaded.get("problem", ""))

    def _answer(self, question: Question, future: Future[Answer]) -> bool:
        """Whether the process can answer more requests."""
        try:
            self._child.write(question)
            _settle(future, self._child.read(timeout_seconds=RENDER_SECONDS))
        except NoReply as error:
            sentence = (
                f"Cohort could not render this prompt: {error}. Try a shorter prompt, "
                "or no chat template."
            )
            _settle(future, {"problem": sentence})
            return False
        return True

    def _end(self, problem: str) -> None:
        with self._lock:
            self._problem = problem
            self._ended_at = time.monotonic()
            left = {key: one for key, one in self._futures.items() if not one.done()}
            if not problem:
                # Another process may answer them.
                for key in left:
                    del self._futures[key]
        self._child.end()
        for future in left.values():
            _settle(
                future,
                {"problem": problem or "The tokenizer process stopped. Try again."},
            )

    def close(self) -> None:
        """End the process and its thread now; pending requests raise Busy."""
        with self._lock:
            self._ended_at = time.monotonic()
            for future in self._futures.values():
                if not future.done():
                    future.set_exception(Busy(UNLOADED))
            self._futures.clear()
        self._child.kill()
        self._queue.put(None)


def _settle(future: Future[Answer], answer: Answer) -> None:
    with suppress(InvalidStateError):  # closed in the meantime
        future.set_result(answer)


def _key(question: Question) -> str:
    return json.dumps(question, sort_keys=True)


class TokenizerPool:
    """All tokenizer processes of this server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: OrderedDict[tuple[int, str], TokenizerProcess] = OrderedDict()
        # Teams without a process, in the order of waiting, with their last poll.
        self._waiting: dict[int, float] = {}

    def ask(self, *, team_id: int, model: str, question: Question) -> Future[Answer]:
        """
        Raises:
            Busy: all processes are busy.
        """
        with self._lock:
            key = (team_id, model)
            process = self._processes.get(key)
            if process is None or not process.can_answer(question):
                self._remove_ended()
                self._make_space(team_id)
                process = self._processes[key] = TokenizerProcess(model)
                self._waiting.pop(team_id, None)
            self._processes.move_to_end(key)
            return process.ask(question)

    def _remove_ended(self) -> None:
        for key in [key for key, one in self._processes.items() if one.has_ended]:
            del self._processes[key]

    def _make_space(self, team_id: int) -> None:
        own = [key for key in self._processes if key[0] == team_id]
        if len(own) >= MAX_PER_TEAM:
            self._end(self._idle(own), OWN_IN_USE)
        elif not self._is_next(team_id):
            self._end(self._idle(own), OTHERS_FIRST)
        elif len(self._processes) >= MAX_PROCESSES:
            idle = self._idle(list(self._processes))
            self._end(idle or (None if own else self._overdue()), ALL_IN_USE)

    def _is_next(self, team_id: int) -> bool:
        """Whether this team waits longest of those without a process."""
        now = time.monotonic()
        for team, asked_at in list(self._waiting.items()):
            if now - asked_at > ABANDONED_SECONDS:
                del self._waiting[team]
        if not any(team == team_id for team, _ in self._processes):
            self._waiting[team_id] = now  # keeps its order, or comes last
        return next(iter(self._waiting), team_id) == team_id

    def _idle(self, keys: list[Key]) -> Key | None:
        """The least recently used idle process."""
        return next((key for key in keys if self._processes[key].is_idle), None)

    def _overdue(self) -> Key | None:
        """A busy one of a team with several; else the oldest after its turn."""
        num_of = Counter(team for team, _ in self._processes)
        several = next((key for key in self._processes if num_of[key[0]] > 1), None)
        oldest = min(self._processes, key=lambda key: self._processes[key].started_at)
        age = time.monotonic() - self._processes[oldest].started_at
        return several or (oldest if age > TURN_SECONDS else None)

    def _end(self, key: Key | None, why_not: str) -> None:
        if key is None:
            raise Busy(why_not)
        self._processes.pop(key).close()

    def close(self) -> None:
        with self._lock:
            for one in self._processes.values():
                one.close()
            self._processes.clear()


tokenizers = TokenizerPool()
# A child reads stdin to its end, so it also ends if the server is killed.
atexit.register(tokenizers.close)
