"""A run is paused and resumed, and its reward log read, in a real browser."""

import pytest
from playwright.sync_api import expect

from dashboard.runs.control import resume_run
from dashboard.runs.models import Run, RunState
from dashboard.runs.state import transition
from tests.browser.accessibility import findings, looking_with
from tests.browser.waiting import wait_until
from tests.dashboard.completions.factories import make_group, make_note, make_run
from tests.dashboard.runs.stories import Story, queue_run

pytestmark = pytest.mark.browser
REASON = (
    "100% of the scores of step 6 failed; reward.max_error_share allows 20%. So the "
    "step was not trained on, and the run pauses.\n"
    '16 times, rule "judge": The judge m gave no score: 127.0.0.1 gave status 503.\n'
    "Fix what failed, then resume: step 6 is sampled and scored again. To go on "
    "although scores fail, allow more errors when you resume."
)


@looking_with(findings)
def test_a_paused_run_shows_its_reason_and_is_resumed(page, team, look):
    story = Story(queue_run(team))
    story.start()
    story.take_steps(5)
    run = story.run
    page.goto(f"/alpha/runs/{run.id}/")
    expect(page.locator("[data-run-link]")).to_have_attribute(
        "data-link", "live", timeout=15_000
    )
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(page.get_by_role("button", name="Resume")).to_be_hidden()

    transition(
        run.id,
        sources=[RunState.RUNNING],
        target=RunState.PAUSED,
        pause_reason=REASON,
    )

    expect(page.locator("[data-run-state]")).to_have_text("paused")
    expect(page.locator("[data-run-left]")).to_have_text("by itself")
    expect(page.locator("[data-run-pause-reason]")).to_contain_text("16 times")
    expect(page.get_by_role("button", name="Pause")).to_be_hidden()
    assert look(page) == []

    page.get_by_role("button", name="Resume").press("Enter")
    dialog = page.locator("#resume-run")
    expect(dialog.get_by_label("Errors allowed")).to_have_value("0.2")
    assert look(page) == []
    dialog.get_by_label("Errors allowed").fill("0.35")
    dialog.get_by_role("button", name="Resume the run").click()

    expect(page.locator("[data-run-state]")).to_have_text("queued")
    expect(page.locator("[data-run-needs]")).to_have_count(0)
    run.refresh_from_db()
    assert run.config["reward"]["max_error_share"] == 0.35


@pytest.mark.slow
def test_an_open_dialog_closes_when_another_user_resumes_the_run(page, team, alice):
    story = Story(queue_run(team))
    story.start()
    story.take_steps(2)
    run = story.run
    pausing = {"sources": [RunState.RUNNING], "target": RunState.PAUSED}
    transition(run.id, **pausing)
    page.goto(f"/alpha/runs/{run.id}/")
    expect(page.locator("[data-run-link]")).to_have_attribute(
        "data-link", "live", timeout=15_000
    )
    page.get_by_role("button", name="Resume").click()
    dialog = page.locator("#resume-run")
    expect(dialog).to_be_visible()

    run.refresh_from_db()
    resume_run(run=run, user=alice, max_error_share=0.5)
    expect(dialog).to_be_hidden()
    Story(Run.objects.get()).start()
    transition(run.id, **pausing)

    page.get_by_role("button", name="Resume").click()
    expect(dialog.get_by_label("Errors allowed")).to_have_value("0.5")
    dialog.get_by_role("button", name="Resume the run").click()
    expect(page.locator("[data-run-state]")).to_have_text("queued")


@pytest.mark.slow
def test_the_pause_button_requests_a_pause(page, team):
    story = Story(queue_run(team))
    story.start()
    page.goto(f"/alpha/runs/{story.run.id}/")

    page.get_by_role("button", name="Pause").click()

    expect(page.locator("[data-run-state]")).to_have_text("pausing")
    assert Run.objects.get().state == RunState.PAUSING


@pytest.fixture
def noted(team) -> Run:
    run = make_run(team, num_steps=9, last_step=9)
    for step in (8, 9):
        group = make_group(run, step=step, prompt_index=4, num_notes=12)
        make_note(group, "checking 4 * 3\nfound 12\n" * 9, rule="format")
        make_note(group, "127.0.0.1 gave status 503.", position=1, is_error=True)
        make_note(group, "\u202e<script>alert(1)</script> שלום", position=2)
    return run


@pytest.mark.slow
def test_the_reward_log_is_filtered_and_leads_to_the_completion(page, noted):
    page.goto(f"/alpha/runs/{noted.pk}/reward-log/")
    assert findings(page) == []
    expect(page.get_by_role("listitem").filter(has_text="Step 9")).to_have_count(3)

    page.locator("summary.chip", has_text="Rule output").click()
    page.get_by_label("Type", exact=True).select_option("error")
    page.get_by_role("button", name="Apply").click()

    page.wait_for_url("**kind=error**")
    expect(page.locator("summary.chip[data-set]")).to_contain_text("Rule output")
    links = page.get_by_role("link", name="completion 2")
    expect(links).to_have_count(2)
    links.first.click()
    wait_until(page, "location.hash === '#completion-1'")
    expect(page.locator("#more-1 [data-note=error]")).to_contain_text("answer")
    assert findings(page) == []


@pytest.mark.slow
def test_the_reward_log_links_to_newer_steps(page, team):
    story = Story(queue_run(team))
    story.start()
    story.take_steps(2)
    page.goto(f"/alpha/runs/{story.run.id}/reward-log/")
    expect(page.locator("[data-run-link]")).to_have_attribute(
        "data-link", "live", timeout=15_000
    )
    offer = page.locator("[data-newer]")
    expect(offer).to_be_hidden()

    story.take_steps(1)

    expect(offer.locator("[data-newer-step]")).to_have_text("3")
    expect(offer).to_be_visible()
