"""How much of a web process one person, and one team, may use.

A few requests of a person run at a time. Others queue and use no thread and no database
connection. The run time of requests is paid from a budget that refills over time; who
has overdrawn it gets 429 until then, so heavy use by one person does not slow down
others.

A request counts while Cohort processes it, not while its body arrives or its response
is read. Requests that run at the same time share the process's time.

The sender is known from an earlier response to the same cookie or token, in any
process; until then a request counts for its address and for all unknown senders.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
from collections import OrderedDict, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network, ip_address
from time import monotonic
from typing import Any

from django.conf import settings
from django.http.cookie import parse_cookie
from redis.asyncio import Redis
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)
SPENT_BY = "cohort.spent_by"  # of a request's scope: its person and team
STREAMS = "cohort.streams"  # of a request's scope: its answer is made while it is sent
MAX_WAITING = 64  # of an account
WAIT_SECONDS = 15.0
MAX_KNOWN = 10_000  # cookies and tokens
KNOWN_SECONDS = 86_400
MAX_ACCOUNTS = 10_000
MAX_OVERDRAWN_SECONDS = 60.0
REFUSED_SECONDS = 1.0  # before the response, to slow down clients that retry at once
SPEND_SECONDS = 0.2  # from what is spent until other processes know
UNCOUNTED = ("/healthz", "/readyz", "/metrics")
# The bucket's time of being full, moved on by what was spent; how far off it is.
SPEND = """
local now = redis.call('TIME')
now = now[1] + now[2] / 1e6
local full = math.max(now, tonumber(redis.call('GET', KEYS[1]) or '0'))
full = math.min(full + ARGV[1], now + ARGV[2])
redis.call('SET', KEYS[1], string.format('%.6f', full), 'EX', 3600)
return tostring(full - now)
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


# By the word that an account's name begins with.
BUDGETS: Mapping[str, Budget] = {
    "person": Budget(at_once=2, per_second=0.5, burst=15.0),
    "program": Budget(at_once=2, per_second=0.5, burst=15.0),
    # Not paid: each token may send so many requests a minute, and no run may lag.
    "ingest": Budget(at_once=3),
    # Not charged: no one is rejected for the use of others.
    "team": Budget(at_once=7),
    "address": Budget(at_once=4),
    "unknown": Budget(at_once=6),
}


class Refused(Exception):
    """The message is for the sender."""

    def __init__(self, why: str, seconds: float) -> None:
        self.seconds = max(1, math.ceil(seconds))
        super().__init__(f"{why} Try again in {self.seconds} s.")


@dataclass(slots=True)
class Account:
    """Of a person, a team or an address, in this process."""

    budget: Budget
    num_running: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    debt: float = 0.0  # seconds until the bucket is full, at `debt_at`
    debt_at: float = 0.0

    def current_debt(self) -> float:
        return max(0.0, self.debt - (monotonic() - self.debt_at))

    def set_debt(self, debt: float) -> None:
        most = self.budget.most_debt + MAX_OVERDRAWN_SECONDS
        self.debt, self.debt_at = min(debt, most), monotonic()

    def check(self) -> None:
        """Raises if the budget is overdrawn or too many requests wait."""
        if not self.budget.is_paid:
            seconds = 0.0
        else:
            seconds = self.current_debt() - self.budget.most_debt
        if seconds > 0:
            raise Refused(
                f"Your requests used more than {self.budget.burst:g} s of server time.",
                seconds,
            )
        if len(self.waiting) >= MAX_WAITING:
            raise Refused(f"{MAX_WAITING} similar requests are already waiting.", 1)

    @property
    def is_idle(self) -> bool:
        return not self.num_running and not self.waiting and self.current_debt() <= 0

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
                with suppress(ValueError):  # `leave` has passed it over
                    self.waiting.remove(turn)
            raise

    def leave(self) -> None:
        """The next request in the queue runs."""
        while self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.num_running -= 1


class Budgets:
    """The middleware, with the accounts of all senders of this process."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.num_running = 0
        self._accounts: dict[str, Account] = {}
        self._pruned_at = 0.0
        self._known: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._redis: Redis | None = None
        self._unsent: dict[str, float] = {}  # spent, but not yet sent to Redis
        self._sending: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] in UNCOUNTED:
            await self.app(scope, receive, send)
            return
        credential = _credential(scope)
        place = scope["path"].strip("/").split("/")[0]
        names = await self._find_names(scope, credential, place)
        turn = Turn(self, scope, [self._account(name) for name in names])
        try:
            turn.check()
            await self.app(scope, turn.received(receive), turn.sent(send))
        except Refused as refused:
            if turn.status is None:
                await _refuse(scope, send, refused)
        finally:
            turn.leave()
            if turn.entered:
                person = await self._learn(scope, credential, place)
                if turn.status != 503:  # unsuccessful waiting is not charged
                    self._spend({*names, person} - {""}, turn.seconds)

    async def _find_names(self, scope: Any, credential: str, place: str) -> list[str]:
        """The accounts that a request counts for, as far as known."""
        person = self._known.get((credential, ""), "")
        if credential and not person:
            person = await self._remember(credential)
        if not person:
            address = network_of((scope.get("client") or ("", 0))[0])
            return [f"address:{address}", "unknown:"]
        team = self._known.get((credential, place), "")
        return [person, team] if team else [person]

    async def _remember(self, credential: str) -> str:
        """Who another process, or this one before its start, has found it to be."""
        try:
            found = await self._client().get(f"cohort:known:{credential}")
        except (RedisError, OSError):
            return ""
        if found:
            self._keep((credential, ""), found.decode())
        return found.decode() if found else ""

    async def _learn(self, scope: Any, credential: str, place: str) -> str:
        """From the response: the person's account. A dead cookie or token has none."""
        was = self._known.get((credential, ""), "")
        person, team = scope.get(
            SPENT_BY, (was, "")
        )  # unknown sender, such as a script
        if not credential:
            return str(person)
        key = f"cohort:known:{credential}"
        if team:
            self._keep((credential, place), team)
        if person:
            self._keep((credential, ""), person)
        elif was:
            self._known.pop((credential, ""), None)
        if person != was:
            with suppress(RedisError, OSError):
                if person:
                    await self._client().set(key, person, ex=KNOWN_SECONDS)
                else:
                    await self._client().delete(key)
        return str(person)

    def _keep(self, key: tuple[str, str], name: str) -> None:
        self._known[key] = name
        self._known.move_to_end(key)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _account(self, name: str) -> Account:
        if name not in self._accounts:
            self._prune()
            self._accounts[name] = Account(BUDGETS[name.partition(":")[0]])
        return self._accounts[name]

    def _prune(self) -> None:
        if len(self._accounts) < MAX_ACCOUNTS or monotonic() - self._pruned_at < 1:
            return
        self._pruned_at = monotonic()
        for name in [name for name, each in self._accounts.items() if each.is_idle]:
            del self._accounts[name]

    def _spend(self, names: set[str], seconds: float) -> None:
        """Here at once, and where other processes see it a moment later."""
        for name in names:
            account = self._account(name)
            if account.budget.is_paid:
                cost = seconds / account.budget.per_second
                account.set_debt(account.current_debt() + cost)
                self._unsent[name] = self._unsent.get(name, 0.0) + cost
        if self._unsent and self._sending is None:
            self._sending = asyncio.create_task(self._send_spent())

    async def _send_spent(self) -> None:
        """Until everything is sent: one task at a time, referenced while it runs."""
        try:
            while self._unsent:
                await asyncio.sleep(SPEND_SECONDS)
                spent, self._unsent = self._unsent, {}
                await self._send_part(spent)
        finally:
            self._sending = None

    async def _send_part(self, spent: Mapping[str, float]) -> None:
        pipeline = self._client().pipeline(transaction=False)
        for name, cost in spent.items():
            most = self._account(name).budget.most_debt + MAX_OVERDRAWN_SECONDS
            pipeline.eval(SPEND, 1, f"cohort:budget:{name}", str(cost), str(most))
        try:
            debts = await pipeline.execute()
        except (RedisError, OSError) as error:
            logger.debug("Request budgets apply to this process only: %s", error)
            return
        for name, debt in zip(spent, debts, strict=True):
            account = self._account(name)
            account.set_debt(max(account.current_debt(), float(debt)))

    def _client(self) -> Redis:
        if self._redis is None:
            self._redis = Redis.from_url(settings.REDIS_URL, socket_timeout=2)
        return self._redis

    async def close(self) -> None:
        """Once the spending is sent."""
        if self._sending is not None:
            await self._sending
        if self._redis is not None:
            await self._redis.aclose()


class Turn:
    """One request's slot in its accounts."""

    def __init__(self, all_: Budgets, scope: Any, accounts: list[Account]) -> None:
        self._all = all_
        self._scope = scope
        self._accounts = accounts
        self._held: list[Account] = []
        self._began = 0.0
        self._others = 1
        self.entered = False
        self.status: int | None = None  # of the answer, once it has begun
        self.seconds = 0.0

    def check(self) -> None:
        for account in self._accounts:
            account.check()

    async def _enter(self) -> None:
        try:
            for account in self._accounts:
                await account.enter()
                self._held.append(account)
        except BaseException:
            self._release()
            raise
        self.entered = True
        self._all.num_running += 1
        self._began, self._others = monotonic(), self._all.num_running

    def leave(self) -> None:
        if self._began:
            # Requests that run at the same time share the process.
            others = (self._others + self._all.num_running) / 2
            self.seconds += (monotonic() - self._began) / max(1.0, others)
            self._all.num_running -= 1
            self._began = 0.0
        self._release()

    def _release(self) -> None:
        while self._held:
            self._held.pop().leave()

    def received(self, receive: Any) -> Any:
        """The work begins once the body is whole: till then Django stores it."""

        async def receive_all() -> Any:
            message = await receive()
            if not self.entered and not message.get("more_body", False):
                self.check()
                try:
                    async with asyncio.timeout(WAIT_SECONDS):
                        await self._enter()
                except TimeoutError:
                    why = f"Your request timed out after waiting {WAIT_SECONDS:g} s."
                    raise Refused(why, WAIT_SECONDS) from None
            return message

        return receive_all

    def sent(self, send: Any) -> Any:
        """A slow reader uses no slot: finished parts are sent outside of it."""

        async def send_aside(message: Any) -> None:
            self.status = message.get("status", self.status)
            is_last = message["type"] == "http.response.body" and not message.get(
                "more_body", False
            )
            was_running = bool(self._began)
            self.leave()
            await send(message)
            if was_running and self._scope.get(STREAMS) and not is_last:
                await self._enter()

        return send_aside


def _credential(scope: Any) -> str:
    """What identifies the sender, hashed; "" without any."""
    given = ""
    if scope["path"].startswith("/api/"):
        kind, _, text = _header(scope, b"authorization").partition(" ")
        if kind.lower() == "bearer":
            given = text.strip()
    else:
        cookies = parse_cookie(_header(scope, b"cookie"))
        given = cookies.get(settings.SESSION_COOKIE_NAME, "")
    return hashlib.sha256(given.encode("utf-8", "replace")).hexdigest() if given else ""


def _header(scope: Any, name: bytes) -> str:
    """As Django reads it: of several lines one text."""
    found = [value for key, value in scope["headers"] if key.lower() == name]
    return (b"; " if name == b"cookie" else b",").join(found).decode("latin-1")


async def _refuse(scope: Any, send: Any, refused: Refused) -> None:
    await asyncio.sleep(REFUSED_SECONDS)
    if scope["path"].startswith("/api/"):
        kind = b"application/problem+json"
        tree = {
            "type": "urn:cohort:problem:rate_limited",
            "title": "Too many requests",
            "status": 429,
            "detail": str(refused),
        }
        body = json.dumps(tree).encode()
    else:
        kind = b"text/plain; charset=utf-8"
        body = f"{refused}\n".encode()
    headers = [
        (b"content-type", kind),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"retry-after", str(refused.seconds).encode()),
    ]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def network_of(address: str) -> str:
    """What one household has: of IPv6 that is 2^64 addresses.

    >>> network_of("2001:db8:0:7::1")
    "2001:db8:0:7::/64"
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if not isinstance(ip, IPv6Address):
        return str(ip)
    network = IPv6Network((int(ip), 64), strict=False)
    return str(ip.ipv4_mapped or network)
