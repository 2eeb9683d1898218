"""A crowd of viewers of one run: `pytest -m load -s tests/load/bench_crowd.py`.

Choose by `-k many`, `-k stalled` or `-k reconnects`.

The trainer writes a line, its supervisor stores it, the web process sends it. Each
line is a finished step of 29 metrics, so every event goes to every viewer.
COHORT_LOAD_VIEWERS, COHORT_LOAD_EVENTS a second and COHORT_LOAD_SECONDS say how many.
"""

import json
import os
import time

import pytest
from playwright.sync_api import Browser, Page

from tests.bench.machine import heading, say, table
from tests.browser.waiting import wait_until
from tests.load.stack import Crowd, Meter, Show, Stack, resident_mb, running_stack
from tests.load.steady_trainer import Pace

pytestmark = pytest.mark.load
NUM_VIEWERS = int(os.environ.get("COHORT_LOAD_VIEWERS", "200"))
EVENTS = float(os.environ.get("COHORT_LOAD_EVENTS", "50"))
SECONDS = float(os.environ.get("COHORT_LOAD_SECONDS", "60"))
NUM_STALLED = NUM_VIEWERS // 10
SETTLING_SECONDS = 5.0
CUT_SECONDS, ROUNDS = 5.0, 3
# When each step was on the screen first.
NOTE_DRAWN = """() => {
    const plot = document.querySelector('[data-chart="reward-mean"]');
    const drawn = window.drawn = [];
    plot.on("plotly_afterplot", () => {
        const last = plot.data.at(-1).x.at(-1);
        requestAnimationFrame(() => drawn.push([last, Date.now() / 1000]));
    });
}"""
HAS_POINT = (
    "document.querySelector('[data-chart=\"reward-mean\"]').data?.at(-1)?.x?.length > 0"
)


def open_page(browser: Browser, stack: Stack, show: Show) -> Page:
    context = browser.new_context(
        base_url=stack.address, viewport={"width": 1440, "height": 900}
    )
    name, value = show.scene.cookie.split("=", 1)
    context.add_cookies([{"url": stack.address, "name": name, "value": value}])
    page = context.new_page()
    page.goto(f"{show.scene.page}?x=step&smooth=0")
    return page


def delays_until_drawn(show: Show, drawn: list[tuple[float, float]]) -> list[float]:
    """Delay of each step until it, or a newer one, was on the screen."""
    lines = [json.loads(line) for line in show.events.read_bytes().splitlines()]
    values = [(e["step"], e["time"]) for e in lines if e["type"] == "step_finished"]
    delays, at = [], 0
    first = drawn[0][0]
    for step, reported_at in values:
        while at < len(drawn) and drawn[at][0] < step:
            at += 1
        if at == len(drawn):
            raise AssertionError(f"step {step} was never drawn")
        if step > first:  # earlier steps were drawn before the observation
            delays.append(drawn[at][1] - reported_at)
    return sorted(delays)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"


def pace_of(seconds: float) -> Pace:
    return Pace(num_steps=int(EVENTS * seconds), events_per_second=EVENTS)


def say_table(
    title: str,
    header: tuple[str, ...],
    rows: list[list[str]],
    *,
    packages: tuple[str, ...] = ("django", "uvicorn"),
) -> None:
    say("\n" + heading("pytest", packages=packages))
    say(f"Load average {os.getloadavg()[0]:.1f} after.\n")
    say(table((f"{title}, {EVENTS:g} events a second", *header), rows))


def test_many_viewers_of_one_run(browser):
    """Delays until a viewer has a line, and until one Chromium among them has drawn it.

    From just before the trainer writes the line; drawn is the frame after plotly.js put
    it into the chart of the mean reward.
    """
    pace = pace_of(SECONDS)
    with running_stack() as stack:
        show = stack.show(stack.prepare(pace), pace)
        crowd = stack.crowd(show.scene)
        came = crowd.ask("come", group="viewers", count=NUM_VIEWERS - 1, over=5)
        page = open_page(browser, stack, show)
        begin = time.monotonic()
        show.go()
        wait_until(page, HAS_POINT)
        page.evaluate(NOTE_DRAWN)
        parts = {**stack.pids(), "viewers": [crowd.process.pid]}
        parts["supervisor"] = [show.process.pid]
        meter = Meter(parts)
        crowd.ask("measure", group="viewers")
        page.wait_for_timeout(1_000 * (SECONDS - (time.monotonic() - begin)) - 500)
        shares = meter.shares()
        while show.process.poll() is None:
            page.wait_for_timeout(250)
        found = crowd.ask("measure", group="viewers")
        ended = crowd.ask("finish", group="viewers", truth=stack.truth(show.scene))
        wait_until(page, f"window.drawn.at(-1)[0] >= {pace.num_steps}")
        drawn = delays_until_drawn(show, page.evaluate("window.drawn"))
        page.context.close()
    rows = [
        ["until a viewer has it, p50", milliseconds(found["p50"])],
        ["p95", milliseconds(found["p95"])],
        ["the slowest", milliseconds(found["max"])],
        ["until Chromium has drawn it, p50", milliseconds(drawn[len(drawn) // 2])],
        ["p95", milliseconds(drawn[int(0.95 * len(drawn))])],
        ["events at viewers", f"{found['count']:,}"],
        ["viewers that lack or differ in anything", f"{len(ended['faults'])}"],
        [
            "frames a second and viewer",
            f"{found['frames'] / SECONDS / NUM_VIEWERS:.1f}",
        ],
        ["characters a frame", f"{found['bytes'] / max(1, found['frames']):,.0f}"],
        ["until all had come, within 5 s", f"{came['seconds']:.1f} s"],
        *([f"of a core: {part}", f"{share:.0%}"] for part, share in shares.items()),
    ]
    say_table(
        f"{NUM_VIEWERS} viewers, {SECONDS:g} s",
        ("",),
        rows,
        packages=("django", "uvicorn", "playwright"),
    )
    assert ended["faults"] == []
    assert ended["viewers"] == NUM_VIEWERS - 1


def watch(stack: Stack, crowd: Crowd, seconds: float) -> tuple[dict[str, float], float]:
    """The delays of the ordinary viewers, and the web process's most memory, in MB."""
    crowd.ask("measure", group="ordinary")
    memory, until = 0.0, time.monotonic() + seconds
    while time.monotonic() < until:
        memory = max(memory, resident_mb(stack.web_pid))
        time.sleep(1)
    return crowd.ask("measure", group="ordinary"), memory


def test_stalled_readers_cost_the_others_nothing():
    """Ordinary viewers alone, then together with stalled sockets."""
    # Alone, then with them, then until they have caught up.
    pace = pace_of(SETTLING_SECONDS + 1.5 * SECONDS + 15)
    num_ordinary = NUM_VIEWERS - NUM_STALLED
    with running_stack() as stack:
        show = stack.show(stack.prepare(pace), pace)
        crowd = stack.crowd(show.scene)
        crowd.ask("come", group="ordinary", count=num_ordinary, over=2)
        crowd.ask("come", group="stalled", count=NUM_STALLED, is_small=True)
        show.go()
        time.sleep(SETTLING_SECONDS)
        alone, before = watch(stack, crowd, SECONDS / 2)
        crowd.ask("stall", group="stalled")
        beside, during = watch(stack, crowd, SECONDS)
        caught_up = crowd.ask("read_on", group="stalled")
        after = resident_mb(stack.web_pid)
        show.wait_for_end()
        truth = stack.truth(show.scene)
        ended = [
            crowd.ask("finish", group=group, truth=truth)
            for group in ("ordinary", "stalled")
        ]
    behind = caught_up["behind"]
    rows = [
        ["before they stall", *delays(alone), f"{before:.1f} MB"],
        [f"{SECONDS:g} s beside them", *delays(beside), f"{during:.1f} MB"],
        ["once they read again", "", "", f"{after:.1f} MB"],
    ]
    say_table(
        f"{num_ordinary} viewers, {NUM_STALLED} stalled",
        ("p50", "p95", "memory of the web process, at most"),
        rows,
    )
    say(
        f"Behind by {min(behind)} to {max(behind)} events; caught up within "
        f"{caught_up['seconds']:.2f} s; {ended[1]['with_snapshot']} by a snapshot. "
        f"Memory grew by {during - before:.1f} MB. Lacking or differing: "
        f"{sum(len(one['faults']) for one in ended)}."
    )
    assert [one["faults"] for one in ended] == [[], []]
    assert min(behind) > 0


def delays(found: dict[str, float]) -> list[str]:
    return [milliseconds(found["p50"]), milliseconds(found["p95"])]


def test_all_reconnected_pages_are_current_soon():
    """Each socket is cut without a close frame at a random time.

    Its page connects again as static/js/live/stream.js does: after 0.25 to 0.5 s, and
    after longer pauses when it is refused. It is current once it holds whatever anyone
    had seen when its new socket was open.
    """
    pace, rows = pace_of(60), []
    with running_stack() as stack:
        show = stack.show(stack.prepare(pace), pace)
        crowd = stack.crowd(show.scene)
        crowd.ask("come", group="steady", count=2)
        crowd.ask("come", group="viewers", count=NUM_VIEWERS, over=5)
        show.go()
        for number in range(1, ROUNDS + 1):
            time.sleep(3)
            meter = Meter({"web": stack.pids()["web"]})
            found = crowd.ask("reconnect", group="viewers", over=CUT_SECONDS)
            share = meter.shares()["web"]
            delays = found["delays"]
            rows.append(
                [
                    f"round {number}",
                    f"{delays[len(delays) // 2]:.2f} s",
                    f"{delays[-1]:.2f} s",
                    f"{found['seconds']:.2f} s",
                    f"{share * found['seconds']:.2f} s",
                ]
            )
        show.wait_for_end()
        truth = stack.truth(show.scene)
        ended = [
            crowd.ask("finish", group=group, truth=truth)
            for group in ("steady", "viewers")
        ]
    say_table(
        f"{NUM_VIEWERS} reconnects in {CUT_SECONDS:g} s",
        ("until current, p50", "the slowest", "until all are", "web's processor"),
        rows,
    )
    say(f"Refused on the way: {ended[1]['refusals']}.")
    assert [one["faults"] for one in ended] == [[], []]
