"""What one person may use of a web process, so that the others have the rest."""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.http import HttpResponse
from django.test import Client

from dashboard.accounts.models import User
from dashboard.accounts.sessions import remember_device
from dashboard.accounts.throttling import redis_client
from dashboard.api.models import Scope
from dashboard.observability.requests import _spent_by
from dashboard.web import budgets
from dashboard.web.budgets import (
    CPU_SECONDS,
    DEVICE_COOKIE,
    SPENT_BY,
    STREAMS,
    Account,
    Budget,
    Budgets,
    Refused,
)
from tests.dashboard.api.asking import make_token

SMALL = Budget(at_once=2, cpu_seconds=10.0)


def set_clock(monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    """At a multiple of 30 a window begins."""
    clock = SimpleNamespace(time=lambda: now, monotonic=time.monotonic)
    monkeypatch.setattr(budgets, "time", clock)


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    for kind in budgets.BUDGETS.keys() - {"ingest", "large"}:
        is_paid = kind in ("person", "program")
        few = SMALL if is_paid else Budget(at_once=2)
        monkeypatch.setitem(budgets.BUDGETS, kind, few)  # type: ignore[arg-type]  # a Mapping to others
    set_clock(monkeypatch, 3_000.0)
    monkeypatch.setattr(budgets, "REFUSED_SECONDS", 0.0)
    for kind in ("cpu", "known"):
        for key in redis_client().scan_iter(f"cohort:{kind}:*"):
            redis_client().delete(key)


_made: list[Budgets] = []


def budgets_of(app: Any) -> Budgets:
    _made.append(Budgets(app))
    return _made[-1]


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    while _made:
        await _made.pop().close()


class App:
    """Requests run until they are let go; `spent_by` is what each turns out to be."""

    def __init__(self, spent_by: tuple[str, str] = ("person:1", "team:a")) -> None:
        self.spent_by = spent_by
        self.status = 200
        self.running = self.most = self.num_done = 0
        self.cpu_seconds = 0.0  # of the thread that all requests have here
        self.open = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope[CPU_SECONDS] = lambda: self.cpu_seconds
        while (await receive()).get("more_body"):
            pass
        self.running += 1
        self.most = max(self.most, self.running)
        await self.open.wait()
        self.running -= 1
        self.num_done += 1
        scope[SPENT_BY] = self.spent_by
        await send(
            {"type": "http.response.start", "status": self.status, "headers": []}
        )
        await send({"type": "http.response.body", "body": b"done"})


async def ask(
    app: Any, who: str = "t", *, path: str = "/a/runs/", **options: str
) -> tuple[int, bytes, dict[bytes, bytes]]:
    sender = _sender(app, who, path, **options)
    await sender.send_input({"type": "http.request", "body": b""})
    return await answer_of(sender)


def _sender(
    app: Any,
    who: str,
    path: str,
    client: str = "1.2.3.4",
    *,
    method: str = "GET",
    cookie: str = "",
    encoding: str = "",
) -> ApplicationCommunicator:
    headers = [(b"content-encoding", encoding.encode())] if encoding else []
    if who and path.startswith("/api/"):
        headers += [(b"authorization", f"bearer {who}".encode())]
    elif who:
        headers += [
            (b"cookie", f"a[b]=1; {cookie}".encode()),
            (b"cookie", f"cohort_session={who}".encode()),
        ]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": headers,
        "client": (client, 1),
    }
    return ApplicationCommunicator(app, scope)


def who_of(scope: Any) -> str:
    return str(scope["headers"][-1][1].decode().rpartition("=")[2])


async def answer_of(
    sender: ApplicationCommunicator,
) -> tuple[int, bytes, dict[bytes, bytes]]:
    start = await sender.receive_output(timeout=20)
    body = await sender.receive_output(timeout=20)
    await sender.wait(timeout=20)
    return start["status"], body["body"], dict(start["headers"])


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if holds():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it took over 20 s")


@asynccontextmanager
async def asking(app: Any, count: int, **options: Any) -> AsyncIterator[list[Any]]:
    tasks = [asyncio.create_task(ask(app, **options)) for _ in range(count)]
    await asyncio.sleep(0.05)
    yield tasks
    await asyncio.gather(*tasks)


async def known(app: Any, inner: App, who: str = "t", **options: Any) -> None:
    """Let it be learned who sends with this token."""
    inner.open.set()
    assert (await ask(app, who, **options))[0] == 200
    inner.open.clear()
    inner.most = 0


async def test_a_few_requests_of_a_person_run_and_the_others_wait():
    inner = App()
    app = budgets_of(inner)
    await known(app, inner)

    async with asking(app, 7) as tasks:
        assert (inner.running, inner.num_done) == (2, 1)
        inner.open.set()

    assert [task.result()[0] for task in tasks] == [200] * 7
    assert inner.most == 2


async def test_requests_of_another_person_do_not_wait():
    inner, other = App(), App(("person:2", "team:b"))

    async def both(scope: Any, receive: Any, send: Any) -> None:
        await (inner if who_of(scope) == "t" else other)(scope, receive, send)

    app = budgets_of(both)
    await known(app, inner)
    await known(app, other, "u", path="/b/runs/")

    async with asking(app, 9):
        other.open.set()
        assert (await ask(app, "u", path="/b/runs/"))[0] == 200
        inner.open.set()


async def test_two_people_of_a_team_share_its_budget():
    inner = App()

    async def either(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope, receive, send)
        scope[SPENT_BY] = (f"person:{who_of(scope)}", "team:a")

    app = budgets_of(either)
    await known(app, inner, "t")
    await known(app, inner, "u")

    async with asking(app, 2, who="t"), asking(app, 2, who="u"):
        assert inner.running == 2
        inner.open.set()


async def test_an_unknown_cookie_counts_for_its_address(monkeypatch):
    inner = App(("", ""))
    app = budgets_of(inner)

    for first, second in (("1.2.3.4", "1.2.3.4"), ("fe80::1", "fe80::2")):
        inner.most = 0
        inner.open.clear()
        allowed = {**budgets.BUDGETS, "visitors": Budget(at_once=9)}
        monkeypatch.setattr(budgets, "BUDGETS", allowed)
        async with (
            asking(app, 3, who="x", client=first),
            asking(app, 3, who="y", client=second),
        ):
            assert inner.running == 2
            async with asking(app, 1, who="x", client="5.6.7.8"):
                assert inner.running == 3
                inner.open.set()


async def test_all_unknown_senders_share_a_budget():
    inner = App(("", ""))
    app = budgets_of(inner)

    async with asking(app, 2), asking(app, 2, client="5.6.7.8"):
        assert inner.running == 2
        inner.open.set()


async def test_no_header_leads_round_a_persons_budget():
    """Pages identify people only by cookies."""
    inner = App()
    app = budgets_of(inner)
    await known(app, inner)
    odd = [_sender(app, "t", "/a/runs/") for _ in range(5)]
    tasks = []
    for number, each in enumerate(odd):
        more = (b"authorization", f"Bearer {number}".encode())
        each.scope["headers"].insert(0, more)
        await each.send_input({"type": "http.request", "body": b""})
        tasks.append(asyncio.create_task(answer_of(each)))
    await asyncio.sleep(0.05)

    assert inner.running == 2
    inner.open.set()
    await asyncio.gather(*tasks)


async def test_a_dead_cookie_counts_for_no_person():
    inner = App()
    app = budgets_of(inner)
    await known(app, inner, "old")
    await known(app, inner, "new")
    inner.open.set()
    inner.spent_by = ("", "")
    assert (await ask(app, "old"))[0] == 200
    inner.open.clear()

    async with asking(app, 2, who="old"):
        inner.spent_by = ("person:1", "team:a")
        async with asking(app, 2, who="new"):
            assert inner.running == 4
            inner.open.set()


async def test_a_new_process_knows_the_sender():
    inner = App()
    await known(budgets_of(inner), inner)
    again = budgets_of(inner)

    async with asking(again, 1):
        assert "person:1" in again._accounts
        inner.open.set()


async def test_unsuccessful_waiting_is_not_counted(monkeypatch):
    inner = App()
    inner.status = 503
    app = budgets_of(inner)
    inner.open.set()
    await ask(app)
    inner.open.clear()
    async with asking(app, 1):
        inner.cpu_seconds += 50.0
        inner.open.set()

    assert (await ask(app))[0] == 503, "not 429"


async def test_waiting_for_a_busy_processor_is_not_counted(monkeypatch):
    inner = App()
    app = budgets_of(inner)
    await known(app, inner)
    async with asking(app, 1):
        set_clock(monkeypatch, 3_100.0)
        inner.cpu_seconds += 3.0
        inner.open.set()

    assert app._accounts["person:1"].spent == pytest.approx(3.0)


async def test_more_than_may_wait_are_refused_at_once(monkeypatch):
    monkeypatch.setattr(budgets, "MAX_WAITING", 3)
    inner = App()
    app = budgets_of(inner)
    await known(app, inner, path="/api/v1/runs")

    async with asking(app, 6, path="/api/v1/runs") as tasks:
        finished, _ = await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
        inner.open.set()

    [refused] = finished
    status, body, headers = refused.result()
    assert status == 429
    assert json.loads(body)["type"] == "urn:cohort:problem:rate_limited"
    assert int(headers[b"retry-after"]) >= 1


async def test_a_request_that_waits_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(budgets, "WAIT_SECONDS", 0.05)
    inner = App()
    app = budgets_of(inner)
    await known(app, inner)

    async with asking(app, 2):
        assert (await ask(app))[0] == 429
        inner.open.set()

    assert (await ask(app))[0] == 200, "its place in the line is gone"


async def use(app: Any, inner: App, cpu_seconds: float) -> int:
    async with asking(app, 1) as tasks:
        inner.cpu_seconds += cpu_seconds
        inner.open.set()
    inner.open.clear()
    return int(tasks[0].result()[0])


async def test_processes_count_the_work_of_a_window_together(monkeypatch):
    """11 s of work, where a window of half a minute has 10."""
    inner = App()
    first, second = budgets_of(inner), budgets_of(inner)
    await known(first, inner)
    assert await use(first, inner, 6.0) == 200
    assert await use(second, inner, 5.0) == 200
    set_clock(monkeypatch, 3_028.5)
    status, _, headers = await ask(second)

    assert (status, int(headers[b"retry-after"])) == (429, 2)
    assert await use(first, inner, 0.6) == 200, "it has not read the other's work"
    assert (await ask(first))[0] == 429
    set_clock(monkeypatch, 3_030.0)
    assert await use(first, inner, 0.0) == 200


async def test_without_redis_each_process_counts_for_itself(monkeypatch, settings):
    settings.REDIS_URL = "unix:///nowhere.sock"
    inner = App()
    app = budgets_of(inner)
    await known(app, inner)
    await use(app, inner, 11.5)

    assert (await ask(app))[0] == 429
    set_clock(monkeypatch, 3_030.0)
    assert await use(app, inner, 0.0) == 200


async def test_a_body_that_comes_slowly_takes_no_place():
    inner = App()
    app = budgets_of(inner)
    await known(app, inner)
    slow = [_sender(app, "t", "/a/runs/") for _ in range(3)]
    for each in slow:
        await each.send_input({"type": "http.request", "body": b"x", "more_body": True})
    inner.open.set()

    assert (await ask(app))[0] == 200

    for each in slow:
        await each.send_input({"type": "http.request", "body": b"x"})
        assert (await answer_of(each))[0] == 200


LARGE = bytes(budgets.LARGE_BYTES + 1)


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (LARGE, ""),
        (gzip.compress(LARGE), "GZIP"),
        (gzip.compress(LARGE) + gzip.compress(b"of two members"), "gzip"),
    ],
)
async def test_a_persons_large_bodies_are_processed_one_at_a_time(body, encoding):
    inner, other = App(), App(("ingest:2", ""))
    inner.spent_by = ("ingest:1", "")

    async def both(scope: Any, receive: Any, send: Any) -> None:
        await (inner if who_of(scope) == "t" else other)(scope, receive, send)

    async def send(who: str, body: bytes) -> tuple[int, bytes, dict[bytes, bytes]]:
        sender = _sender(app, who, "/runs/", method="POST", encoding=encoding)
        cut = body.rfind(b"\x1f\x8b") + 1  # within a member's first bytes
        first = {"type": "http.request", "body": body[:cut], "more_body": True}
        await sender.send_input(first)
        await sender.send_input({"type": "http.request", "body": body[cut:]})
        return await answer_of(sender)

    app = budgets_of(both)
    await known(app, inner)
    await known(app, other, "u")
    small = gzip.compress(bytes(1_000)) if encoding else b"small"

    large = [asyncio.create_task(send("t", body)) for _ in range(4)]
    await until(lambda: inner.running == 1)
    tasks = [asyncio.create_task(send("t", small))]
    await until(lambda: inner.running == 2)
    tasks.append(asyncio.create_task(send("u", body)))
    await until(lambda: other.running == 1)
    other.open.set()
    inner.open.set()

    assert [(await each)[0] for each in large + tasks] == [200] * 6
    assert (inner.most, inner.num_done) == (2, 6)


async def test_an_answer_that_is_read_slowly_takes_no_place():
    read = asyncio.Event()

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        scope[CPU_SECONDS] = lambda: 0.0
        await receive()
        scope[SPENT_BY], scope[STREAMS] = ("person:1", ""), True
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for more in (True, True, False):
            await send({"type": "http.response.body", "body": b"x", "more_body": more})

    app = budgets_of(stream)
    assert (await ask(app))[0] == 200

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        await read.wait()

    scope = _sender(app, "t", "/a/runs/").scope
    slow = [asyncio.create_task(app({**scope}, receive, send)) for _ in range(3)]
    await asyncio.sleep(0.05)

    assert (await ask(app))[0] == 200
    read.set()
    await asyncio.gather(*slow)


async def test_a_form_waits_until_its_sender_may_spend_again(monkeypatch):
    """A page of the same person is refused meanwhile."""
    inner = App()
    app = budgets_of(inner)
    await known(app, inner)
    app._account("person:1").spend(11.0)
    inner.open.set()
    set_clock(monkeypatch, 3_029.7)
    form = asyncio.create_task(ask(app, method="POST"))
    await asyncio.sleep(0.01)

    assert (await ask(app))[0] == 429
    assert inner.num_done == 1, "the form waits"
    set_clock(monkeypatch, 3_030.0)
    assert (await form)[0] == 200


async def test_a_refused_page_tries_again_by_itself(monkeypatch):
    inner = App()
    app = budgets_of(inner)
    await known(app, inner)
    app._account("person:1").spend(11.0)
    set_clock(monkeypatch, 3_025.5)
    sender = _sender(app, "t", "/a/runs/")
    sender.scope["headers"].append((b"accept", b"text/html"))
    await sender.send_input({"type": "http.request", "body": b""})
    status, body, headers = await answer_of(sender)

    assert (status, headers[b"retry-after"]) == (429, b"5")
    assert b'http-equiv="refresh" content="5"' in body


async def test_a_visitor_comes_next_however_many_others_wait():
    """Two hundred addresses, each with two requests, asked before."""
    inner = App(("", ""))
    app = budgets_of(inner)
    inner.open.set()
    for number in range(200):
        await ask(app, "", client=f"10.0.0.{number}")
    inner.open.clear()
    served: list[str] = []

    async def note(client: str) -> None:
        if (await ask(app, "", client=client))[0] == 200:
            served.append(client)

    others = [f"10.0.0.{number}" for number in range(200)] * 2
    tasks = [asyncio.create_task(note(client)) for client in others]
    await asyncio.sleep(0.1)
    tasks.append(asyncio.create_task(note("1.2.3.4")))
    await asyncio.sleep(0.1)
    inner.open.set()
    await asyncio.gather(*tasks)

    assert served.index("1.2.3.4") <= 2, "only those that ran already came before"


async def test_the_client_with_most_waiting_requests_is_refused(monkeypatch):
    monkeypatch.setattr(budgets, "MAX_WAITING", 3)
    account = Account(Budget(at_once=1))
    await account.enter("a")
    waiting = {
        name: asyncio.create_task(account.enter(name[0]))
        for name in ("b1", "b2", "c1", "d1")
    }
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert [name for name, task in waiting.items() if task.done()] == ["b1"]
    with pytest.raises(Refused):
        await waiting["b1"]
    order = []
    for _ in range(3):
        account.leave()
        await asyncio.sleep(0)
        order += [name for name, task in waiting.items() if task.done()]
    assert order[-3:] == ["b2", "c1", "d1"]
    account.leave()
    assert (account.num_running, account.waiting) == (0, [])


@pytest.mark.parametrize(
    ("busy", "free"),
    [
        ({"method": "POST", "path": "/sign-in/"}, {"path": "/sign-in/"}),
        ({"path": "/public/token/"}, {"path": "/sign-in/"}),
        ({"path": "/sign-in/"}, {"method": "POST", "path": "/sign-in/"}),
    ],
    ids=["passwords", "reports", "pages"],
)
async def test_unknown_senders_wait_only_for_requests_of_the_same_kind(busy, free):
    inner = App(("", ""))
    app = budgets_of(inner)

    async with (
        asking(app, 2, **busy, client="1.1.1.1"),
        asking(app, 1, **busy, client="2.2.2.2"),
    ):
        assert inner.running == 2
        async with asking(app, 1, **free, client="3.3.3.3"):
            assert inner.running == 3
            inner.open.set()


async def test_a_browser_that_signed_in_before_is_recognised():
    inner = App(("", ""))
    app = budgets_of(inner)
    answer = HttpResponse()
    remember_device(answer, User(pk=7, username="zoe"))
    cookie = f"{DEVICE_COOKIE}={answer.cookies[DEVICE_COOKIE].value}"

    async with asking(app, 2, client="1.1.1.1"), asking(app, 2, client="2.2.2.2"):
        assert inner.running == 2
        async with asking(app, 1, cookie=cookie + "x", client="3.3.3.3"):
            assert inner.running == 2, "forged"
            async with asking(app, 1, cookie=cookie, client="3.3.3.3"):
                assert inner.running == 3
                assert "person:7" in app._accounts
                inner.open.set()


async def test_several_may_leave_the_queue_at_once():
    account = Account(SMALL)
    await account.enter()
    await account.enter()
    gone = [asyncio.create_task(account.enter()) for _ in range(3)]
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    account.leave()

    assert [
        type(found) for found in await asyncio.gather(*gone, return_exceptions=True)
    ] == [asyncio.CancelledError] * 3
    account.leave()
    assert (account.num_running, len(account.waiting)) == (0, 0)


async def test_a_refused_turn_that_is_cancelled_gives_no_place_back():
    """The longest wait is refused at the moment that its own patience ends."""
    account = Account(SMALL)
    await account.enter()
    await account.enter()
    oldest = asyncio.create_task(account.enter())
    await asyncio.sleep(0)
    account._refuse_one()
    oldest.cancel()

    with pytest.raises(asyncio.CancelledError):
        await oldest
    assert account.num_running == 2


async def test_forms_of_an_overdrawn_sender_hold_a_place_while_they_wait(monkeypatch):
    """So at most as many wait at once as may run, and the others queue."""
    inner = App()
    app = budgets_of(inner)
    await known(app, inner)
    account = app._account("person:1")
    account.spend(11.0)
    set_clock(monkeypatch, 3_029.7)
    forms = [asyncio.create_task(ask(app, method="POST")) for _ in range(4)]
    await asyncio.sleep(0.05)

    assert (account.num_running, len(account.waiting)) == (2, 2)
    inner.open.set()
    set_clock(monkeypatch, 3_030.0)
    assert [status for status, *_ in await asyncio.gather(*forms)] == [200] * 4


async def test_leaving_the_queue_frees_the_slot():
    account = Account(SMALL)
    await account.enter()
    await account.enter()
    gone = asyncio.create_task(account.enter())
    next_ = asyncio.create_task(account.enter())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)

    account.leave()
    await asyncio.wait_for(next_, 5)
    account.leave()
    account.leave()

    assert (account.num_running, len(account.waiting)) == (0, 0)


def test_overspending_is_carried_into_the_next_windows(monkeypatch):
    account = Account(Budget(at_once=1, cpu_seconds=15.0))
    account.spend(40.0)

    set_clock(monkeypatch, 3_030.0)
    assert account.overdrawn_seconds() == 30.0
    set_clock(monkeypatch, 3_061.0)
    assert account.overdrawn_seconds() == 0.0
    account.spend(6.0)
    assert account.overdrawn_seconds() == 29.0


def test_a_clock_that_is_set_back_makes_no_one_wait_longer_than_a_window(monkeypatch):
    account = Account(Budget(at_once=1, cpu_seconds=15.0))
    account.spend(31.0)

    set_clock(monkeypatch, 0.0)

    assert account.overdrawn_seconds() == 30.0


def test_pages_scripts_and_trainers_have_budgets_of_their_own(
    alice, alice_client, charlie
):
    def spent_by(client: Client, path: str) -> tuple[str, str]:
        answer = client.get(path)
        return _spent_by(answer.wsgi_request, is_answered=answer.status_code < 400)

    def program(*scopes: str) -> Client:
        return Client(headers={"authorization": f"Bearer {make_token(alice, *scopes)}"})

    number = alice.pk
    found = spent_by(alice_client, "/alpha/runs/")
    assert found == (f"person:{number}", "team:alpha")
    assert spent_by(alice_client, "/other/runs/") == (f"person:{number}", "")
    found = spent_by(program(Scope.READ), "/api/v1/runs")
    assert found == (f"program:{number}", "team:alpha")
    found = spent_by(program(Scope.INGEST), "/api/v1/me")
    assert found == (f"ingest:{number}", "")
    assert spent_by(Client(), "/sign-in/") == ("", "")
