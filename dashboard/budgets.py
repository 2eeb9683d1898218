"""How much of a web process one person, and one team, may use.

A person's requests run a few at a time. The others wait in line, and take no thread
and no database connection meanwhile. The seconds that requests run are paid from a
budget, which fills up by itself: who has overdrawn it is answered 429 until it has.
So one who asks for all that there is slows down nobody else.

A request counts while Cohort works at it, not while its body arrives or its answer is
read. Who sent it is known from an earlier answer to the same cookie or token; until
then it counts for its address.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from time import monotonic
from typing import Any

from django.conf import settings
from redis.asyncio import Redis
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)
SPENT_BY = "cohort.spent_by"  # of a request's scope: its person and team
MAX_WAITING = 64
WAIT_SECONDS = 15.0
MAX_KNOWN = 10_000  # cookies and tokens
REFUSED_SECONDS = 1.0  # until the answer, so that who asks on and on is slowed down
UNCOUNTED = ("/healthz", "/readyz", "/metrics")
# The bucket's time of being empty, moved on by what was spent; how far off it is.
SPEND = """
local now = redis.call('TIME')
now = now[1] + now[2] / 1e6
local empty = math.max(now, tonumber(redis.call('GET', KEYS[1]) or '0'))
empty = empty + ARGV[1]
redis.call('SET', KEYS[1], string.format('%.6f', empty), 'EX', 3600)
return tostring(empty - now)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """`at_once` requests run; `per_second` seconds of work are paid for, and `burst`
    seconds at once."""

    at_once: int
    per_second: float = math.inf
    burst: float = math.inf

    @property
    def most_debt(self) -> float:
        """Seconds, until a bucket that is overdrawn by nothing is full again."""
        return self.burst / self.per_second if self.is_paid else math.inf

    @property
    def is_paid(self) -> bool:
        return self.per_second < math.inf


PERSON = Budget(at_once=3, per_second=1.0, burst=30.0)
# Not paid: each of her tokens may send so many requests a minute, and no run may lag.
INGEST = Budget(at_once=3)
# Not paid: nobody of a team is refused for what another of it has spent.
TEAM = Budget(at_once=6)
# Behind a proxy that does not name its visitors, all of those not signed in.
ADDRESS = Budget(at_once=8, per_second=4.0, burst=120.0)


@dataclass(slots=True)
class Account:
    """Of a person, a team or an address, in this process."""

    budget: Budget
    num_running: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    debt: float = 0.0  # seconds until the bucket is full, when last heard of
    heard_at: float = 0.0

    def debt_now(self) -> float:
        return max(0.0, self.debt - (monotonic() - self.heard_at))

    def hear(self, debt: float) -> None:
        self.debt, self.heard_at = debt, monotonic()

    def overdrawn_seconds(self) -> float:
        return self.debt_now() - self.budget.most_debt

    @property
    def is_idle(self) -> bool:
        return not self.num_running and not self.waiting and self.debt_now() <= 0

    async def enter(self) -> None:
        if self.num_running < self.budget.at_once and not self.waiting:
            self.num_running += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            await turn  # `leave` has counted it
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            else:
                self.waiting.remove(turn)
            raise

    def leave(self) -> None:
        """The next in line runs in its place."""
        while self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.num_running -= 1


class Refused(Exception):
    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = max(1, math.ceil(seconds))


class Budgets:
    """The middleware, with the accounts of all who ask this process."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self._accounts: dict[str, Account] = {}
        self._known: OrderedDict[tuple[str, str], tuple[str, str]] = OrderedDict()
        self._redis: Redis | None = None
        self._spending: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path: str = scope["path"]
        if path in UNCOUNTED or path.startswith(settings.STATIC_URL):
            await self.app(scope, receive, send)
            return
        credential = _credential(scope)
        place = f"{path}//".split("/", 2)[1]  # `OPTIONS *` has no slash
        names = self._names(scope, credential, place)
        turn = Turn([self._account(name) for name in names])
        try:
            await turn.begin()
        except Refused as refused:
            await _refuse(scope, send, refused.seconds)
            return
        try:
            await self.app(scope, turn.received(receive), turn.sent(send))
        finally:
            turn.end()
            self._learn(scope, credential, place)
            self._spend(self._names(scope, credential, place), turn.seconds)

    def _names(self, scope: Any, credential: str, place: str) -> list[str]:
        """Whose accounts a request counts for, as far as it is known."""
        person, team = self._known.get((credential, place), ("", ""))
        if not person:
            person, _ = self._known.get((credential, ""), ("", ""))
        if not person:
            return [f"address:{(scope.get('client') or ('', 0))[0]}"]
        return [person, team] if team else [person]

    def _learn(self, scope: Any, credential: str, place: str) -> None:
        person, team = scope.get(SPENT_BY, ("", ""))
        if not credential or not person:
            return
        for key, value in (((credential, ""), ""), ((credential, place), team)):
            self._known[key] = (person, value)
            self._known.move_to_end(key)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _account(self, name: str) -> Account:
        if name not in self._accounts:
            if len(self._accounts) >= MAX_KNOWN:
                idle = [key for key, each in self._accounts.items() if each.is_idle]
                for key in idle:
                    del self._accounts[key]
            kinds = {"address": ADDRESS, "team": TEAM, "ingest": INGEST}
            budget = kinds.get(name.partition(":")[0], PERSON)
            self._accounts[name] = Account(budget)
        return self._accounts[name]

    def _spend(self, names: list[str], seconds: float) -> None:
        """Here at once, and where other processes see it a moment later."""
        for name in names:
            account = self._account(name)
            if not account.budget.is_paid:
                continue
            cost = seconds / account.budget.per_second
            account.hear(account.debt_now() + cost)
            task = asyncio.get_running_loop().create_task(self._tell(name, cost))
            self._spending.add(task)
            task.add_done_callback(self._spending.discard)

    async def close(self) -> None:
        """Once what was spent is told."""
        await asyncio.gather(*self._spending)
        if self._redis is not None:
            await self._redis.aclose()

    async def _tell(self, name: str, cost: float) -> None:
        if self._redis is None:
            self._redis = Redis.from_url(settings.REDIS_URL, socket_timeout=2)
        try:
            key = f"cohort:budget:{name}"
            asked: Any = self._redis.eval(SPEND, 1, key, str(cost))
            debt = await asked
        except (RedisError, OSError) as error:
            logger.debug("Budgets are those of this process alone: %s", error)
            return
        account = self._account(name)
        account.hear(max(account.debt_now(), float(debt)))


class Turn:
    """One request's place in the accounts that it counts for."""

    def __init__(self, accounts: list[Account]) -> None:
        self._accounts = accounts
        self._entered: list[Account] = []
        self._began = 0.0
        self._is_over = False
        self.seconds = 0.0

    async def begin(self) -> None:
        for account in self._accounts:
            seconds = account.overdrawn_seconds()
            if seconds > 0:
                raise Refused(seconds)
            if len(account.waiting) >= MAX_WAITING:
                raise Refused(1.0)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._resume()
        except TimeoutError:
            raise Refused(WAIT_SECONDS) from None

    async def _resume(self) -> None:
        try:
            for account in self._accounts:
                await account.enter()
                self._entered.append(account)
        except BaseException:
            self._pause()
            raise
        self._began = monotonic()

    def _pause(self) -> None:
        if self._began:
            self.seconds += monotonic() - self._began
            self._began = 0.0
        while self._entered:
            self._entered.pop().leave()

    def end(self) -> None:
        self._is_over = True
        self._pause()

    def received(self, receive: Any) -> Any:
        is_whole = False

        async def receive_aside() -> Any:
            nonlocal is_whole
            if is_whole:  # it is asked whether the visitor has left
                return await receive()
            self._pause()
            message = await receive()
            is_whole = not message.get("more_body", False)
            await self._resume()
            return message

        return receive_aside

    def sent(self, send: Any) -> Any:
        async def send_aside(message: Any) -> None:
            if not message.get("more_body", False):
                await send(message)
                return
            self._pause()
            await send(message)
            if not self._is_over:
                await self._resume()

        return send_aside


def _credential(scope: Any) -> str:
    """What tells the sender apart, hashed; "" without any."""
    for given in _credentials(scope):
        return hashlib.sha256(given).hexdigest()
    return ""


def _credentials(scope: Any) -> Iterator[bytes]:
    headers = dict(scope["headers"])
    if token := headers.get(b"authorization"):
        yield token
    with suppress(CookieError):
        cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        if found := cookies.get(settings.SESSION_COOKIE_NAME):
            yield found.value.encode("latin-1", "replace")


async def _refuse(scope: Any, send: Any, seconds: int) -> None:
    sentence = (
        "You, or your team, sent more requests than this server answers at a time. "
        f"Wait {seconds} s, then try again."
    )
    if scope["path"].startswith("/api/"):
        kind = b"application/problem+json"
        tree = {
            "type": "urn:cohort:problem:rate_limited",
            "title": "Too many requests",
            "status": 429,
            "detail": sentence,
        }
        body = json.dumps(tree).encode()
    else:
        kind = b"text/plain; charset=utf-8"
        body = f"{sentence}\n".encode()
    await asyncio.sleep(REFUSED_SECONDS)
    headers = [(b"content-type", kind), (b"retry-after", str(seconds).encode())]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": body})
