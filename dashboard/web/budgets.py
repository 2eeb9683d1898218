"""How much of a web process one person, and one team, may use.

A few requests of a person run at a time. Others queue and use no thread and no database
connection. The processor time of requests is counted in Redis, in windows of half a
minute. Who has used up a window gets 429 until the next, so heavy use by one person
does not slow down others; a form that a person sends waits instead, since a refusal
would lose it.

A request counts while Cohort processes it, not while its body arrives or its response
is read. Of large bodies of one account one is processed at a time, because Python keeps
much of the memory that each takes.

The sender is known from an earlier response to the same cookie or token, in any
process, or from a signed cookie of a browser in which a person once signed in. Until
then a request counts for its address and for all unknown senders, whose addresses take
turns.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any

from django.conf import settings
from django.core import signing
from django.http.cookie import parse_cookie
from django.template import loader
from redis.asyncio import Redis
from redis.exceptions import RedisError

from dashboard.web.middleware import is_for_programs

logger = logging.getLogger(__name__)
SPENT_BY = "cohort.spent_by"  # of a request's scope: its person and team
STREAMS = "cohort.streams"  # of a request's scope: its answer is made while it is sent
CPU_SECONDS = "cohort.cpu_seconds"  # of a request's scope: a function, of its thread
# OWASP's device cookie, of a browser that a user has signed in from: it signs no one
# in, but neither wrong passwords nor requests from elsewhere count against it.
DEVICE_COOKIE = "cohort_device"
DEVICE_SALT = "accounts.known_devices"
DEVICE_SECONDS = 180 * 24 * 3_600
MAX_WAITING = 64  # of an account
LARGE_BYTES = 4_000_000  # of a body, unpacked; a gzip member of 2^32 has more, packed
GZIP_MEMBER = b"\x1f\x8b\x08"  # how each member of a gzip body begins
WAIT_SECONDS = 15.0
# Of forms and large bodies, which cost much to repeat. Proxies give up after 60 s.
PATIENT_SECONDS = 45.0
MAX_KNOWN = 10_000  # cookies and tokens
KNOWN_SECONDS = 86_400
MAX_ACCOUNTS = 10_000
REFUSED_SECONDS = 1.0  # before the response, to slow down clients that retry at once
WINDOW_SECONDS = 30.0  # shorter than a form waits
SHARED_SECONDS = 0.5  # of processor time: less is not yet told to other processes


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """`at_once` requests run, with `cpu_seconds` of processor time in each window."""

    at_once: int
    cpu_seconds: float = math.inf


# By the word that an account's name begins with.
BUDGETS: Mapping[str, Budget] = {
    "person": Budget(at_once=2, cpu_seconds=15.0),
    "program": Budget(at_once=2, cpu_seconds=15.0),
    # Not counted: each token may send so many requests a minute, and no run may lag.
    "ingest": Budget(at_once=3),
    "large": Budget(at_once=1),  # bodies of an account
    # Not counted either: no one is rejected for the use of others.
    "team": Budget(at_once=7),
    "address": Budget(at_once=4),
    # Of all unknown senders: pages such as the sign-in form, which cost milliseconds;
    # forms, whose passwords are hashed; and public reports, with all their charts.
    "visitors": Budget(at_once=6),
    "passwords": Budget(at_once=3),
    "public": Budget(at_once=3),
}


class Refused(Exception):
    """The message is for the sender."""

    def __init__(self, why: str, seconds: float) -> None:
        self.why = why
        self.seconds = max(1, math.ceil(seconds))
        super().__init__(f"{why} Try again in {self.seconds} s.")


@dataclass(slots=True)
class Account:
    """The account of a person, a team, an address or all unknown senders, in this
    process.
    """

    budget: Budget
    num_running: int = 0
    waiting: list[tuple[str, asyncio.Future[None]]] = field(default_factory=list)
    served: dict[str, float] = field(default_factory=dict)  # when each sender last was
    window: int = 0  # of `spent`, the seconds of all processes as far as known
    spent: float = 0.0
    unshared: float = 0.0  # part of it that only this process knows

    def spend(self, seconds: float) -> None:
        self._enter_window()
        self.spent += seconds
        self.unshared += seconds

    def overdrawn_seconds(self) -> float:
        """Return the seconds until the next window if this one is used up."""
        self._enter_window()
        if self.spent <= self.budget.cpu_seconds:
            return 0.0
        return max(0.0, (self.window + 1) * WINDOW_SECONDS - time.time())

    def _enter_window(self) -> None:
        """Carry what was overspent into the current window; a clock may be set back."""
        window = int(time.time() // WINDOW_SECONDS)
        if window != self.window:
            num_windows = max(1, window - self.window)
            left_over = self.spent - num_windows * self.budget.cpu_seconds
            self.window, self.spent, self.unshared = window, max(0.0, left_over), 0.0

    @property
    def is_idle(self) -> bool:
        return not (self.num_running or self.waiting or self.overdrawn_seconds())

    async def enter(self, sender: str = "") -> None:
        """Waits for a place; raises Refused where too many wait."""
        if self.num_running < self.budget.at_once and not self.waiting:
            self.num_running += 1
            self._note_served(sender)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((sender, turn))
        if len(self.waiting) > MAX_WAITING:
            self._refuse_one()
        try:
            await turn  # `leave` has counted it
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):  # `leave` has passed it over
                    self.waiting.remove((sender, turn))
            elif turn.exception() is None:
                self.leave()
            raise

    def leave(self) -> None:
        """Gives the place to the sender that was served longest ago, or never."""
        while self.waiting:
            longest = min(self.waiting, key=lambda waiter: self._served_at(waiter[0]))
            self.waiting.remove(longest)
            sender, turn = longest
            if not turn.done():
                self._note_served(sender)
                turn.set_result(None)
                return
        self.num_running -= 1

    def _served_at(self, sender: str) -> float:
        return self.served.get(sender, 0.0)

    def _note_served(self, sender: str) -> None:
        self.served.pop(sender, None)
        self.served[sender] = time.monotonic()
        if len(self.served) > MAX_ACCOUNTS:
            del self.served[next(iter(self.served))]

    def _refuse_one(self) -> None:
        """Refuse the longest wait of the sender with most; of several, of the last
        served.
        """
        num_turns = Counter(sender for sender, _ in self.waiting)
        refused = max(
            self.waiting,
            key=lambda waiter: (num_turns[waiter[0]], self._served_at(waiter[0])),
        )
        self.waiting.remove(refused)
        if not refused[1].done():
            refused[1].set_exception(
                Refused(f"{MAX_WAITING} similar requests are already waiting.", 1)
            )


class Budgets:
    """The middleware, with the accounts of all senders of this process."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self._accounts: dict[str, Account] = {}
        self._known: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._redis = Redis.from_url(settings.REDIS_URL, socket_timeout=2)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] in ("/healthz", "/readyz", "/metrics"):
            await self.app(scope, receive, send)
            return
        credential = _credential(scope)
        place = scope["path"].strip("/").split("/")[0]
        names = await self._find_names(scope, credential, place)
        turn = Turn(scope, names, self._account)
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
                if turn.status != 503:  # unsuccessful waiting is not counted
                    for name in {*names, person} - {""}:
                        await self._spend(name, turn.seconds)

    async def _find_names(self, scope: Any, credential: str, place: str) -> list[str]:
        """Return the accounts that a request counts for, as far as known."""
        person = self._known.get((credential, ""), "")
        if not person and not is_for_programs(scope["path"]):
            # Who signed in with this browser last, by a cookie that only Cohort writes.
            person = read_device(_cookie(scope, DEVICE_COOKIE)).get("account", "")
        if credential and not person:
            # As another process, or this one before its start, has found.
            with suppress(RedisError, OSError):
                if stored := await self._redis.get(f"cohort:known:{credential}"):
                    person = stored.decode()
                    self._keep((credential, ""), person)
        if not person:
            # The account that unknown senders share for such a request.
            pool = "public:" if place == "public" else "visitors:"
            if scope["method"] not in ("GET", "HEAD"):
                pool = "passwords:"
            return [f"address:{network_of(_client(scope))}", pool]
        team = self._known.get((credential, place), "")
        return [person, team] if team else [person]

    async def _learn(self, scope: Any, credential: str, place: str) -> str:
        """Learn the person's account from the response. A dead cookie or token has
        none.
        """
        was = self._known.get((credential, ""), "")
        # By default an unknown sender, such as a script.
        person, team = scope.get(SPENT_BY, (was, ""))
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
                    await self._redis.set(key, person, ex=KNOWN_SECONDS)
                else:
                    await self._redis.delete(key)
        return str(person)

    def _keep(self, key: tuple[str, str], name: str) -> None:
        self._known[key] = name
        self._known.move_to_end(key)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _account(self, name: str) -> Account:
        if name not in self._accounts:
            if len(self._accounts) >= MAX_ACCOUNTS:
                accounts = self._accounts.items()
                self._accounts = {
                    k: account for k, account in accounts if not account.is_idle
                }
            self._accounts[name] = Account(BUDGETS[name.partition(":")[0]])
        return self._accounts[name]

    async def _spend(self, name: str, seconds: float) -> None:
        account = self._account(name)
        if account.budget.cpu_seconds == math.inf:
            return
        account.spend(seconds)
        if account.unshared < SHARED_SECONDS:
            return
        key, unshared = f"cohort:cpu:{name}:{account.window}", account.unshared
        account.unshared = 0.0
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.incrbyfloat(key, unshared)
        pipeline.expire(key, int(2 * WINDOW_SECONDS))
        try:
            spent, _ = await pipeline.execute()
        except (RedisError, OSError) as error:
            logger.debug("Request budgets apply to this process only: %s", error)
            return
        if key.endswith(f":{account.window}"):
            account.spent = max(account.spent, spent)

    async def close(self) -> None:
        await self._redis.aclose()


class Turn:
    """A request's slot in its accounts."""

    def __init__(
        self, scope: Any, names: list[str], account: Callable[[str], Account]
    ) -> None:
        self._scope = scope
        self._accounts = [account(name) for name in names]
        self._large = partial(account, f"large:{names[0]}")
        # Programs repeat a refused request; a person would lose what the form holds.
        is_read = scope["method"] in ("GET", "HEAD", "OPTIONS")
        self._is_form = not is_read and not is_for_programs(scope["path"])
        self._held: list[Account] = []
        self._is_running = False
        self._began = 0.0
        self.entered = False
        self.status: int | None = None  # of the answer, once it has begun
        self.seconds = 0.0

    def check(self) -> None:
        """Raises Refused if a window is used up, unless the request is a form."""
        for account in self._accounts:
            seconds = account.overdrawn_seconds()
            if seconds > 0 and not self._is_form:
                raise Refused(
                    f"Your requests used {account.budget.cpu_seconds:g} s of processor "
                    f"time in {WINDOW_SECONDS:g} s.",
                    seconds,
                )

    async def _enter(self) -> None:
        sender = network_of(_client(self._scope), prefix=48)
        try:
            for account in self._accounts:
                await account.enter(sender)
                self._held.append(account)
                for seconds in iter(account.overdrawn_seconds, 0.0):  # of a form
                    await asyncio.sleep(seconds)
        except BaseException:
            self._release()
            raise
        self.entered = self._is_running = True
        self._began = self._cpu_seconds()

    def leave(self) -> None:
        if self._is_running:
            self.seconds += self._cpu_seconds() - self._began
            self._is_running = False
        self._release()

    def _cpu_seconds(self) -> float:
        """Return the CPU time of the request's thread, which serves no other
        meanwhile.
        """
        return float(self._scope[CPU_SECONDS]())

    def _release(self) -> None:
        while self._held:
            self._held.pop().leave()

    def received(self, receive: Any) -> Any:
        """Begin the work once the body is whole: until then Django stores it."""
        is_gzip = _header(self._scope, b"content-encoding").lower() == "gzip"
        num_bytes, end, has_members = 0, b"", False

        async def receive_all() -> Any:
            nonlocal num_bytes, end, has_members
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if is_gzip:  # it ends with the size of its last member, mostly its only one
                end += message.get("body", b"")
                has_members |= end.find(GZIP_MEMBER, 1) > 0
                end = end[-4:]
            if not self.entered and not message.get("more_body", False):
                self.check()
                num_bytes = max(num_bytes, int.from_bytes(end, "little"))
                is_large = num_bytes > LARGE_BYTES or has_members
                if is_large:  # first, so that it waits in no place of a small one
                    self._accounts = [self._large(), *self._accounts]
                seconds = PATIENT_SECONDS if self._is_form or is_large else WAIT_SECONDS
                try:
                    async with asyncio.timeout(seconds):
                        await self._enter()
                except TimeoutError:
                    why = f"Your request timed out after waiting {seconds:g} s."
                    raise Refused(why, WAIT_SECONDS) from None
            return message

        return receive_all

    def sent(self, send: Any) -> Any:
        """Use no slot for a slow reader: finished parts are sent outside of it."""

        async def send_aside(message: Any) -> None:
            self.status = message.get("status", self.status)
            is_last = message["type"] == "http.response.body" and not message.get(
                "more_body", False
            )
            was_running = self._is_running
            self.leave()
            await send(message)
            if was_running and self._scope.get(STREAMS) and not is_last:
                await self._enter()

        return send_aside


def _credential(scope: Any) -> str:
    """Return what identifies the sender, hashed; "" without any."""
    secret = ""
    if is_for_programs(scope["path"]):
        kind, _, text = _header(scope, b"authorization").partition(" ")
        if kind.lower() == "bearer":
            secret = text.strip()
    else:
        secret = _cookie(scope, settings.SESSION_COOKIE_NAME)
    if not secret:
        return ""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def read_device(cookie: str) -> dict[str, str]:
    """Read what `remember_device` of accounts wrote; empty for any other cookie."""
    try:
        owner = signing.loads(cookie, salt=DEVICE_SALT, max_age=DEVICE_SECONDS)
    except signing.BadSignature:
        return {}
    return dict(owner)


def _client(scope: Any) -> str:
    return str((scope.get("client") or ("", 0))[0])


def _cookie(scope: Any, name: str) -> str:
    return parse_cookie(_header(scope, b"cookie")).get(name, "")


def _header(scope: Any, name: bytes) -> str:
    """Read a header as Django does: of several lines one text."""
    values = [value for key, value in scope["headers"] if key.lower() == name]
    return (b"; " if name == b"cookie" else b",").join(values).decode("latin-1")


async def _refuse(scope: Any, send: Any, refused: Refused) -> None:
    await asyncio.sleep(REFUSED_SECONDS)
    if is_for_programs(scope["path"]):
        kind = b"application/problem+json"
        tree = {
            "type": "urn:cohort:problem:rate_limited",
            "title": "Too many requests",
            "status": 429,
            "detail": str(refused),
        }
        body = json.dumps(tree).encode()
    elif "text/html" in _header(scope, b"accept") and not _header(scope, b"hx-request"):
        kind = b"text/html; charset=utf-8"
        context = {"sentence": refused.why, "seconds": refused.seconds}
        context["is_form"] = scope["method"] not in ("GET", "HEAD")
        body = loader.get_template("429.html").render(context).encode()
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


def network_of(address: str, *, prefix: int = 64) -> str:
    """Return what one household has: of IPv6 that is 2^64 addresses; with a prefix of
    48, what one customer of a provider can have.

    >>> network_of("2001:db8:0:7::1")
    "2001:db8:0:7::/64"
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if not isinstance(ip, IPv6Address):
        return str(ip)
    network = IPv6Network((int(ip), prefix), strict=False)
    return str(ip.ipv4_mapped or network)
