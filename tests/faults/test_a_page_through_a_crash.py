"""kill -9 of a trainer while its page is open."""

import os
import signal

import pytest
from playwright.sync_api import expect

from dashboard.runs.models import Run, RunState
from dashboard.runs.state import notify_workers
from tests.browser.shown import TALL, assert_a_fresh_page_shows_the_same
from tests.browser.waiting import wait_until
from tests.faults.workers import trainer_pid, wait_for

pytestmark = [pytest.mark.faults, pytest.mark.browser]
NUM_STEPS = 120
KILLED_AFTER = 46  # six past a checkpoint
MINUTE = 60_000
CHART = "document.querySelector('[data-chart=\"reward-mean\"]')"
LINES = f"{CHART}.data.filter((line) => line.line.width)"
SUPERSEDED = f"{LINES}.filter(({{ meta }}) => meta.isTail)"
CURRENT = f"{LINES}.filter(({{ meta }}) => !meta.isTail && !meta.isFaint)"


def rewards(run: Run, *, superseded: bool) -> tuple[list[int], list[float | None]]:
    run.refresh_from_db()
    place = run.metric_names.index("reward/mean")
    steps = run.steps.filter(superseded_by__isnull=not superseded).order_by("step")
    return [s.step for s in steps], [s.values[place] for s in steps]


def test_superseded_steps_of_a_killed_trainer_turn_grey(
    page, launch_tiny, start_worker, data_folder
):
    start_worker("one")
    run = launch_tiny(num_steps=NUM_STEPS)
    page.set_viewport_size(TALL)
    page.goto(f"/alpha/runs/{run.id}/?smooth=0")
    page.evaluate("window.isTheSamePage = true")

    def has_run_on() -> bool:
        run.refresh_from_db()
        assert run.state != RunState.FAILED, run.fail_reason
        return run.last_step >= KILLED_AFTER

    wait_for(has_run_on, what=f"step {KILLED_AFTER}", seconds=180)
    pid = trainer_pid(data_folder, run.id, attempt=1)
    assert pid
    os.kill(pid, signal.SIGKILL)
    state = page.locator("[data-run-state]")
    expect(state).to_have_text("queued", timeout=MINUTE)
    Run.objects.filter(id=run.id).update(not_before=None)
    notify_workers()

    wait_until(page, f"{SUPERSEDED}.length === 1", seconds=90)
    expect(state).to_have_text("finished", timeout=3 * MINUTE)
    wait_until(page, f"{CURRENT}[0].x.length === {NUM_STEPS}")
    steps, values = rewards(run, superseded=False)
    assert steps == list(range(1, NUM_STEPS + 1))
    [line] = page.evaluate(CURRENT)
    assert (line["customdata"], line["y"]) == (steps, values)
    lost_steps, lost = rewards(run, superseded=True)
    resumed_at = run.attempts.get(number=2).from_step
    assert lost_steps == list(range(resumed_at + 1, lost_steps[-1] + 1))
    [tail] = page.evaluate(SUPERSEDED)
    assert (tail["customdata"], tail["y"]) == (lost_steps, lost)
    assert tail["line"]["dash"] == "dash"
    assert page.evaluate("window.isTheSamePage")
    assert_a_fresh_page_shows_the_same(page)
