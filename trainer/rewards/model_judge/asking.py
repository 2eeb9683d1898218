"""Calls of a judge: concurrent, deduplicated, within a budget and a deadline."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Event, Lock

from trainer.host import tick
from trainer.internet import Refused, check_target, read_url
from trainer.rewards.model_judge.client import (
    Client,
    NoReply,
    Reply,
    find_key,
    judges_allowlist,
)
from trainer.rewards.model_judge.ledger import Ledger
from trainer.rewards.model_judge.question import Question

# Between one try and the next: 1, 2, 4 … seconds, less up to half by chance, so that
# those that failed together do not come back together.
_FIRST_WAIT_SECONDS = 1.0
_MAX_WAIT_SECONDS = 60.0
# An endpoint that asks for a longer Retry-After gives no score.
_MAX_PATIENCE_SECONDS = 300.0
# After so many failures in a row each question is sent once until one succeeds: a
# step must not wait for the retries of an unreachable endpoint.
_LOST_IN_A_ROW = 8
_ENDED = "The run has ended, so the judge is not called."


class JudgeUnavailable(Exception):
    """There is no reply. The text says why, without details of the question."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A judge's endpoint, with its limits."""

    base_url: str
    key_name: str
    model: str
    max_tokens: int
    token_limit_field: str
    temperature: float | None
    timeout_seconds: float
    max_tries: int
    max_concurrency: int
    budget_calls: int
    budget_tokens: int
    json_schema: str = ""  # of the reply, as JSON; "": none is asked for

    @property
    def account(self) -> str:
        """Key of the shared budget."""
        return f"{self.base_url} {self.model}"


@dataclass
class Backoff:
    """State of an endpoint, shared by all threads that call it."""

    until: float = 0.0  # time.monotonic() of the next call
    num_lost: int = 0  # failures in a row
    lock: Lock = field(default_factory=Lock)

    def ask_for(self, seconds: float) -> None:
        with self.lock:
            self.until = max(self.until, time.monotonic() + seconds)

    def note(self, *, is_lost: bool) -> None:
        with self.lock:
            self.num_lost = self.num_lost + 1 if is_lost else 0


class Judge:
    """An endpoint and the threads that call it. Thread-safe."""

    def __init__(
        self,
        endpoint: Endpoint,
        ledger: Ledger,
        *,
        sleep: Callable[[Event, float], bool] = Event.wait,
    ) -> None:
        """Args: sleep: waits for an event and so many seconds at most.

        Raises:
            Refused: what the environment says of the key or the address.
        """
        self._endpoint = endpoint
        self._ledger = ledger
        self._client = open_client(endpoint)
        self._threads = ThreadPoolExecutor(
            endpoint.max_concurrency, thread_name_prefix="judge"
        )
        self._backoff = Backoff()
        self._closed = Event()
        self._sleep = sleep
        self._lock = Lock()
        self._pending: dict[bytes, Future[Reply]] = {}

    def submit(
        self,
        question: Question,
        *,
        deadline: float,
        is_readable: Callable[[Reply], bool],
    ) -> Future[Reply]:
        """Send a question unless its reply is known or pending.

        The result raises JudgeUnavailable.
        """
        endpoint = self._endpoint
        digest = question.digest(
            base_url=endpoint.base_url,
            model=endpoint.model,
            max_tokens=endpoint.max_tokens,
            temperature=endpoint.temperature,
            **({"json_schema": endpoint.json_schema} if endpoint.json_schema else {}),
        )
        with self._lock:
            asked = self._pending.get(digest)
            if asked is not None:
                return _reused(asked)
            reply = self._ledger.find(digest, is_readable=is_readable)
            if reply is not None:
                future: Future[Reply] = Future()
                future.set_result(replace(reply, is_reused=True))
                return future
            try:
                asked = self._threads.submit(self._ask, question, digest, deadline)
            except RuntimeError:
                raise JudgeUnavailable(_ENDED) from None
            self._pending[digest] = asked
        asked.add_done_callback(lambda _: self._pending.pop(digest, None))
        return asked

    def close(self) -> None:
        """Cancel pending calls."""
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()
        self._threads.shutdown()

    def _ask(self, question: Question, digest: bytes, deadline: float) -> Reply:
        endpoint = self._endpoint
        is_away = self._backoff.num_lost >= _LOST_IN_A_ROW
        num_tries = 1 if is_away else endpoint.max_tries
        for num_tried in range(1, num_tries + 1):
            now = time.monotonic()
            wait = max(0.0, self._backoff.until - now)
            if now + wait >= deadline:
                raise JudgeUnavailable(
                    "No time was left to call the judge. Score fewer completions at "
                    "once."
                )
            if self._sleep(self._closed, wait):
                raise JudgeUnavailable(_ENDED)
            if not self._ledger.take_call(
                endpoint.account,
                max_calls=endpoint.budget_calls,
                max_tokens=endpoint.budget_tokens,
            ):
                raise JudgeUnavailable(
                    f"The budget of the judge {endpoint.model} is used up: "
                    f"{endpoint.budget_calls:,} calls and {endpoint.budget_tokens:,} "
                    "tokens per run. Raise budget_calls or budget_tokens."
                )
            tick()
            reply = None
            try:
                reply = self._client.ask(
                    self._body(question),
                    timeout_seconds=min(
                        endpoint.timeout_seconds, deadline - time.monotonic()
                    ),
                )
            except Refused as error:
                raise JudgeUnavailable(str(error)) from None
            except NoReply as error:
                self._after(error, num_tried, num_tries, deadline)
            finally:
                self._ledger.add(endpoint.account, digest, reply)
            if reply is not None:
                self._backoff.note(is_lost=False)
                return reply
        raise AssertionError("the last try raises")

    def _body(self, question: Question) -> dict[str, object]:
        endpoint = self._endpoint
        system, user = question.texts()
        body: dict[str, object] = {
            "model": endpoint.model,
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": user},
            ],
            endpoint.token_limit_field: endpoint.max_tokens,
            "stream": False,
        }
        if endpoint.temperature is not None:
            body["temperature"] = endpoint.temperature
        if endpoint.json_schema:
            schema = {"name": "reply", "schema": json.loads(endpoint.json_schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    def _after(
        self, error: NoReply, num_tried: int, num_tries: int, deadline: float
    ) -> None:
        """Wait before the next try.

        Raises:
            JudgeUnavailable: there is none.
        """
        wait = min(_FIRST_WAIT_SECONDS * 2 ** (num_tried - 1), _MAX_WAIT_SECONDS)
        wait *= random.uniform(0.5, 1.0)
        if error.wait_seconds is not None:
            # Never sooner than it wants; all that ask it wait.
            self._backoff.ask_for(min(error.wait_seconds, _MAX_PATIENCE_SECONDS))
            wait = max(wait, error.wait_seconds)
        is_last = not error.may_pass or num_tried == num_tries
        has_time = wait <= min(_MAX_PATIENCE_SECONDS, deadline - time.monotonic())
        if not is_last and has_time and not self._sleep(self._closed, wait):
            return
        self._backoff.note(is_lost=True)
        tries = f" after {num_tried} requests" if num_tried > 1 else ""
        raise JudgeUnavailable(
            f"The judge {self._endpoint.model} returned no score{tries}: {error}."
        )


def _reused(asked: Future[Reply]) -> Future[Reply]:
    """Return what another question's call gives, for which that one is charged."""
    shared: Future[Reply] = Future()

    def pass_on(done: Future[Reply]) -> None:
        try:
            shared.set_result(replace(done.result(), is_reused=True))
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            shared.set_exception(error)

    asked.add_done_callback(pass_on)
    return shared


def open_client(endpoint: Endpoint) -> Client:
    """Return a client for an endpoint, as far as the environment lets it be asked.

    Raises:
        Refused: the environment has not the key, or does not allow the address.
    """
    target, allowlist = read_url(endpoint.base_url), judges_allowlist()
    check_target(target, allowlist)
    return Client(target, key=find_key(endpoint.key_name, target), allowlist=allowlist)


def replies(
    judge: Judge,
    questions: Sequence[Question],
    *,
    deadline: float,
    is_readable: Callable[[Reply], bool],
) -> list[Reply | JudgeUnavailable]:
    """Return what a judge replies to each of some questions, or why it does not.

    One that an earlier life of the run asked is asked again where `is_readable` is
    false of what was replied.
    """
    asked: list[Future[Reply] | JudgeUnavailable] = []
    for question in questions:
        try:
            asked.append(
                judge.submit(question, deadline=deadline, is_readable=is_readable)
            )
        except JudgeUnavailable as error:
            asked.append(error)
    return [
        outcome if isinstance(outcome, JudgeUnavailable) else _result(outcome)
        for outcome in asked
    ]


def _result(asked: Future[Reply]) -> Reply | JudgeUnavailable:
    try:
        return asked.result()
    except JudgeUnavailable as error:
        return error
    except CancelledError:
        return JudgeUnavailable(_ENDED)
