"""Many people at their pages: `pytest -m load -s tests/load/bench_http.py`.

A run of 500 steps is there, and COHORT_LOAD_RATES requests a second are asked of all
that people look at, for COHORT_LOAD_SECONDS each. A request is timed from when it was
due. Where more come than are answered, what waits is asked to its end: of a rate far
above that it takes minutes.
"""

import http.client
import os
import random
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from queue import SimpleQueue
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from tests.bench.machine import heading, say, table
from tests.load.stack import Meter, Stack, running_stack
from tests.load.stage import Scene
from tests.load.steady_trainer import Pace

pytestmark = pytest.mark.load
RATES = [
    float(rate) for rate in os.environ.get("COHORT_LOAD_RATES", "10,20,30").split(",")
]
SECONDS = float(os.environ.get("COHORT_LOAD_SECONDS", "40"))
NUM_THREADS = 64
NUM_ABUSING = 50
ABUSED_TURNS = 2
TIMEOUT_SECONDS = 30
# uvicorn closes a connection that is idle for 5 s; a browser then opens another.
KEPT_SECONDS = 3
PACE = Pace(num_steps=500, events_per_second=200, num_groups=4)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A kind of page, its share of requests, and URLs to choose from."""

    name: str
    weight: float
    paths: Sequence[str]


@dataclass
class Answers:
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    faults: list[str] = field(default_factory=list)

    def all_seconds(self) -> list[float]:
        return sorted(one for some in self.seconds.values() for one in some)


def ask_steadily(
    address: str,
    asked: Sequence[Asked],
    *,
    cookies: Sequence[str],
    rate: float,
    seconds: float,
) -> Answers:
    """Each request is from a random user."""
    draw = random.Random(0)
    kinds = draw.choices(
        asked, weights=[one.weight for one in asked], k=int(rate * seconds)
    )
    due: SimpleQueue[tuple[float, str, str, str] | None] = SimpleQueue()
    begin = time.monotonic() + 0.5
    for number, kind in enumerate(kinds):
        path, cookie = draw.choice(kind.paths), draw.choice(cookies)
        due.put((begin + number / rate, kind.name, path, cookie))
    answers, lock = Answers(), threading.Lock()

    def work() -> None:
        connection = http.client.HTTPConnection(
            urlsplit(address).netloc, timeout=TIMEOUT_SECONDS
        )
        used_at = time.monotonic()
        while (task := due.get()) is not None:
            at, name, path, cookie = task
            time.sleep(max(0.0, at - time.monotonic()))
            if time.monotonic() - used_at > KEPT_SECONDS:
                connection.close()
            used_at = time.monotonic()
            headers = {"Cookie": cookie, "Accept-Encoding": "gzip"}
            fault = _ask(connection, path, headers)
            spent = time.monotonic() - at
            with lock:
                answers.seconds[name].append(spent)
                if fault:
                    answers.faults.append(f"{path}: {fault}")
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(NUM_THREADS)]
    for thread in threads:
        due.put(None)
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def _ask(
    connection: http.client.HTTPConnection, path: str, headers: Mapping[str, str]
) -> str | None:
    """What was wrong with the response."""
    try:
        connection.request("GET", path, headers=dict(headers))
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return f"{type(error).__name__}: {error}"
    return None if answer.status == 200 else f"status {answer.status}"


def quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def test_many_people_at_their_pages():
    rows, kinds = [], []
    with running_stack() as stack:
        show = stack.show(stack.prepare(PACE), PACE)
        show.go()
        show.wait_for_end()
        asked = addresses_of(stack, show.scene)
        cookies = show.scene.cookies[1:]
        for rate in RATES:
            meter = Meter(stack.pids())
            with counted_connections(stack) as most:
                answers = ask_steadily(
                    stack.address, asked, cookies=cookies, rate=rate, seconds=SECONDS
                )
            assert answers.faults == [], answers.faults[:5]
            rows.append(row_of(rate, answers, meter.shares()["web"], most[0]))
            kinds.append((rate, answers))
    say("\n" + heading("pytest", packages=("django", "uvicorn")))
    say(f"{SECONDS:g} s each; load average {os.getloadavg()[0]:.1f} after.\n")
    names = ("requests a second", "p50", "p95", "p99", "slowest", "not 200")
    say(table((*names, "of a core: web", "connections, at most"), rows))
    for rate, answers in kinds:
        say("")
        say(table((f"at {rate:g} a second", "asked", "p50", "p95"), by_kind(answers)))


def test_a_heavy_user_does_not_slow_down_others():
    """50 connections on the most expensive pages, with 20 ordinary users.

    Turn by turn with the same people alone.
    """
    rows = []
    with running_stack() as stack:
        show = stack.show(stack.prepare(PACE), PACE)
        show.go()
        show.wait_for_end()
        asked = addresses_of(stack, show.scene)
        abuser, *cookies = show.scene.cookies
        for turn in range(2 * ABUSED_TURNS):
            is_abused = turn % 2 == 1
            with abused(stack, show.scene, abuser if is_abused else "") as statuses:
                answers = ask_steadily(
                    stack.address, asked, cookies=cookies, rate=10, seconds=SECONDS
                )
            assert answers.faults == [], answers.faults[:5]
            ordered = answers.all_seconds()
            shown = [quantile(ordered, part) for part in (0.5, 0.95, 0.99)]
            message = ", ".join(
                f"{code}: {n:,}" for code, n in sorted(statuses.items())
            )
            times = [f"{1_000 * value:,.0f} ms" for value in (*shown, ordered[-1])]
            rows.append(
                ["beside one" if is_abused else "alone", *times, message or "–"]
            )
    say("\n" + heading("pytest", packages=("django", "uvicorn")))
    say(f"{len(cookies)} people, 10 requests a second, {SECONDS:g} s each.\n")
    say(table(("", "p50", "p95", "p99", "slowest", "answers to the one"), rows))


@contextmanager
def abused(stack: Stack, scene: Scene, cookie: str) -> Iterator[Counter[str]]:
    """From a user with NUM_ABUSING connections; without a cookie, anonymous."""
    statuses: Counter[str] = Counter()
    is_over, lock = threading.Event(), threading.Lock()
    number = scene.page.strip("/").split("/")[-1]
    dear = [
        f"{scene.page}export/completions.jsonl",
        f"{scene.page}export/metrics.parquet",
        f"/{scene.team}/compare?runs={number}",
        f"{scene.page}completions/?q=the",
        f"{scene.page}completions/",
        f"{scene.page}groups/",
        scene.page,
    ]

    def work(first: int) -> None:
        connection = http.client.HTTPConnection(
            urlsplit(stack.address).netloc, timeout=TIMEOUT_SECONDS
        )
        for at in count(first):
            if is_over.is_set():
                break
            path = dear[at % len(dear)]
            fault = _ask(connection, path, {"Cookie": cookie}) or "status 200"
            with lock:
                statuses[fault.removeprefix("status ").split(":")[0]] += 1
        connection.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(NUM_ABUSING)]
    for thread in threads if cookie else []:
        thread.start()
    try:
        yield statuses
    finally:
        is_over.set()
        for thread in threads if cookie else []:
            thread.join()


def addresses_of(stack: Stack, scene: Scene) -> list[Asked]:
    run, team = scene.page, f"/{scene.team}"
    steps = range(1, PACE.num_steps + 1, 37)
    groups = [f"{run}groups/{step}/0/" for step in steps]
    runs = [f"{team}/runs/", f"{team}/runs/?sort=name"]
    number = run.strip("/").split("/")[-1]
    others = [f"{team}/datasets/", f"{team}/rewards/", f"{team}/compare?runs={number}"]
    page = fetch(stack, scene, run)
    static = sorted(set(re.findall(r'(?:src|href)="(/static/[^"]+)"', page)))
    return [
        Asked(name="a run", weight=15, paths=[run]),
        Asked(name="runs", weight=15, paths=runs),
        Asked(name="groups of a step", weight=10, paths=[f"{run}groups/"]),
        Asked(name="a group", weight=10, paths=groups),
        Asked(name="completions", weight=5, paths=[f"{run}completions/"]),
        Asked(name="config, log", weight=5, paths=[f"{run}config/", f"{run}logs/"]),
        Asked(name="prompts", weight=5, paths=[f"{run}prompts/"]),
        Asked(name="datasets, rewards, compare", weight=5, paths=others),
        Asked(name="scripts, styles", weight=20, paths=static),
        Asked(name="healthz, readyz", weight=10, paths=["/healthz", "/readyz"]),
    ]


def fetch(stack: Stack, scene: Scene, path: str) -> str:
    request = Request(stack.address + path, headers={"Cookie": scene.cookie})  # noqa: S310
    with urlopen(request) as answer:  # noqa: S310
        text: str = answer.read().decode()
        return text


@contextmanager
def counted_connections(stack: Stack) -> Iterator[list[int]]:
    """The highest number of PostgreSQL's connection processes."""
    most, is_over = [0], threading.Event()

    def look() -> None:
        while not is_over.wait(1.0):
            most[0] = max(most[0], len(stack.connections()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        is_over.set()
        thread.join()


def row_of(rate: float, answers: Answers, share: float, most: int) -> list[str]:
    ordered = answers.all_seconds()
    shown = [quantile(ordered, part) for part in (0.5, 0.95, 0.99)]
    return [
        f"{rate:g}",
        *(f"{1_000 * value:,.0f} ms" for value in (*shown, ordered[-1])),
        f"{len(answers.faults)}",
        f"{share:.0%}",
        f"{most}",
    ]


def by_kind(answers: Answers) -> list[list[str]]:
    found = []
    for name, seconds in answers.seconds.items():
        ordered = sorted(seconds)
        shown = (quantile(ordered, part) for part in (0.5, 0.95))
        times = [f"{1_000 * value:,.0f} ms" for value in shown]
        found.append([name, f"{len(ordered):,}", *times])
    return found
