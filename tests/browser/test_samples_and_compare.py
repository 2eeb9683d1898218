"""Groups, one group, completions and compare, as a reader uses them in a browser."""

import re

import pytest
from playwright.sync_api import expect

from dashboard.runs.models import Run
from tests.browser.waiting import wait_until
from tests.dashboard.completions.factories import make_group, make_run, make_steps

pytestmark = [pytest.mark.browser, pytest.mark.slow]
LONG = "\n".join(f"Try {i}: 3 * {i} = {3 * i}" for i in range(60))


@pytest.fixture
def run(team) -> Run:
    run = make_run(team, "calm-otter-1")
    make_steps(run, {"reward/mean": [0.1 * s for s in range(1, 10)]})
    for step in (3, 5, 9):
        make_group(run, step=step, prompt_index=4, texts=[LONG, "b", "b", "d"])
        make_group(run, step=step, prompt_index=6, rewards=(0.0, 0.0))
        make_group(run, step=step, prompt_index=8, rewards=(1.2, 1.2))
        make_group(run, step=step, prompt_index=9, rewards=(None, 0.2))
    return run


def test_the_bracket_keys_walk_through_the_steps(page, run):
    page.goto(f"/alpha/runs/{run.pk}/groups/?step=5&signal=mixed")

    page.keyboard.press("[")
    page.wait_for_url("**/groups/?step=3&signal=mixed")
    page.keyboard.press("}")
    page.wait_for_url("**/groups/?step=9&signal=mixed")

    expect(page.locator(".group-link")).to_have_count(1)


def test_a_key_typed_into_a_field_moves_nothing(page, run):
    page.goto(f"/alpha/runs/{run.pk}/groups/?step=5")

    page.get_by_role("spinbutton", name="Step").press("[")

    expect(page).to_have_url(re.compile(r"step=5$"))


def test_the_slider_goes_to_the_nearest_step_with_groups(page, run):
    page.goto(f"/alpha/runs/{run.pk}/groups/")

    slider = page.get_by_role("slider")
    change = (
        "e => { e.value = 4; e.dispatchEvent(new Event('input', {bubbles: true})) }"
    )
    slider.evaluate(change)
    expect(page.get_by_role("spinbutton", name="Step")).to_have_value("4")
    slider.dispatch_event("change", {"bubbles": True})

    expect(page.locator(".stepper-note")).to_contain_text("Step 4")
    expect(page).to_have_url(re.compile(r"groups/\?step=4$"))


def test_groups_are_read_by_keyboard(page, run):
    page.goto(f"/alpha/runs/{run.pk}/groups/?step=5")
    expect(page.locator("#completion-0")).to_contain_text("Try 0")

    page.keyboard.press("j")
    page.wait_for_url("**/groups/5/6/")
    expect(page.locator("#group-title")).to_have_text("What is 6 + 1?")
    expect(page).to_have_title(re.compile("^Prompt 6 at step 5,"))
    open_one = page.locator(".group-link[aria-current]")
    expect(open_one).to_have_attribute("data-prompt", "6")
    page.keyboard.press("k")
    page.wait_for_url("**/groups/5/4/")
    expect(page.locator("#group-title")).to_have_text("What is 4 + 1?")
    page.keyboard.press("J")
    expect(page.locator("#completion-0")).to_be_focused()
    page.keyboard.press("e")
    expect(page.locator("#more-0")).to_be_visible()
    page.keyboard.press("n")
    page.wait_for_url("**/groups/9/4/")
    page.go_back()
    expect(page.locator("#group-title")).to_have_text("What is 4 + 1?")
    page.wait_for_url("**/groups/5/4/")
    page.keyboard.press("[")
    page.wait_for_url("**/groups/?step=3")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("previous completion")


def test_going_back_reads_the_group_before(page, run):
    page.goto(f"/alpha/runs/{run.pk}/groups/?step=5")
    page.locator("[data-prompt='8']").click()
    expect(page.locator("#group-title")).to_have_text("What is 8 + 1?")
    page.locator("[data-prompt='6']").click()
    expect(page.locator("#group-title")).to_have_text("What is 6 + 1?")

    page.go_back()

    expect(page.locator("#group-title")).to_have_text("What is 8 + 1?")
    open_one = page.locator(".group-link[aria-current]")
    expect(open_one).to_have_attribute("data-prompt", "8")
    page.locator("td.completion-cell").first.click(position={"x": 5, "y": 9})
    expect(page.locator(".completion-more").first).to_be_visible()


def test_a_click_opens_the_whole_text(page, run):
    page.goto(f"/alpha/runs/{run.pk}/groups/5/4/")
    text = page.locator("#text-0")
    before = text.bounding_box()

    text.click(position={"x": 5, "y": 9})

    after = text.bounding_box()
    assert before is not None
    assert after is not None
    assert after["height"] > 3 * before["height"]
    details = page.locator("#more-0")
    expect(details.get_by_role("rowheader", name="format")).to_be_visible()


def test_a_narrow_screen_shows_the_list_and_then_the_group(page, run):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"/alpha/runs/{run.pk}/groups/?step=5")
    expect(page.locator("#group-title")).to_be_hidden()

    page.locator("[data-prompt='6']").click()

    expect(page.locator("#group-title")).to_be_visible()
    expect(page.locator(".group-link").first).to_be_hidden()
    page.get_by_role("link", name="All groups of step 5").click()
    expect(page.locator(".group-link").first).to_be_visible()


def test_a_live_run_shows_the_newest_step_unless_another_is_chosen(page, run):
    Run.objects.filter(pk=run.pk).update(state="queued", finished_at=None)
    frame = "step => document.dispatchEvent(new CustomEvent('runframe', "
    frame += "{detail: {steps: [{step}]}}))"
    page.goto(f"/alpha/runs/{run.pk}/groups/")
    follow = page.get_by_role("switch", name="Follow newest step")
    expect(follow).to_be_checked()
    make_group(run, step=11, prompt_index=2)

    page.evaluate(frame, 11)

    expect(page.get_by_role("spinbutton", name="Step")).to_have_value("11")
    page.goto(f"/alpha/runs/{run.pk}/groups/?step=9")
    make_group(run, step=12, prompt_index=2)
    page.evaluate(frame, 12)
    expect(follow).to_contain_text("12")
    expect(page.get_by_role("spinbutton", name="Step")).to_have_value("9")
    follow.click()
    expect(page.get_by_role("spinbutton", name="Step")).to_have_value("12")

    # A group that was opened stays, with its view, until the newest is asked for.
    page.locator(".group-link").first.click()
    page.wait_for_url("**/groups/12/2/")
    expect(follow).not_to_be_checked()
    make_group(run, step=13, prompt_index=2)
    page.evaluate(frame, 13)
    page.wait_for_timeout(3_500)  # a step is followed within 3 s
    expect(page.get_by_role("spinbutton", name="Step")).to_have_value("12")
    page.keyboard.press("d")
    page.wait_for_url("**/groups/12/2/?diff=on")
    page.keyboard.press("[")
    page.wait_for_url("**/groups/?step=11&diff=on")
    follow.click()
    expect(page.get_by_role("spinbutton", name="Step")).to_have_value("13")
    expect(follow).to_be_checked()


def test_the_link_to_a_completion_is_copied(alice, run, open_browser):
    context = open_browser(alice)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"/alpha/runs/{run.pk}/groups/5/4/?sort=reward")

    page.locator("#completion-3 .row-toggle").click()
    page.locator("#more-3").get_by_role("button", name="Copy link").click()

    expect(page.get_by_text("Link copied.")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.endswith(f"/alpha/runs/{run.pk}/groups/5/4/?sort=reward#completion-3")


def test_a_change_of_metric_redraws_and_is_kept_in_the_address(page, team, run):
    other = make_run(team, "brave-finch-2")
    make_steps(other, {"reward/mean": [0.5, 0.6], "loss": [1.0, 2.0]})
    page.goto(f"/alpha/compare?runs={run.pk},{other.pk}&smooth=0&metric=reward/mean")
    curve = page.locator("[data-curve-plot]")
    expect(curve.locator(".scatterlayer .trace")).to_have_count(2)

    page.locator("select[name=metric]").select_option("loss")

    expect(page).to_have_url(re.compile(r"metric=loss"))
    drawn = "[...document.querySelector('[data-curve-plot]').data.at(-1).y]"
    wait_until(page, f"JSON.stringify({drawn}) === '[1,2]'")
    page.reload()
    expect(page.locator("select[name=metric]")).to_have_value("loss")


def test_cursor_and_zoom_are_shared_by_all_charts(page, team, run):
    other = make_run(team, "brave-finch-2")
    make_steps(other, {"reward/mean": [0.5] * 10, "loss": [1.0] * 10})
    page.goto(f"/alpha/compare?runs={other.pk}")
    plots = page.locator(".small-plot.js-plotly-plot")
    expect(plots).to_have_count(2)

    plots.first.hover()

    expect(page.locator(".small-line:visible")).to_have_count(2)
    expect(page.locator("[data-readout]").nth(1)).to_contain_text("1")
    page.evaluate(
        "Plotly.relayout(document.querySelector('.small-plot'),"
        " {'xaxis.range[0]': 2, 'xaxis.range[1]': 4})"
    )
    ranges = (
        "[...document.querySelectorAll('.small-plot')].map(p => p.layout.xaxis.range)"
    )
    wait_until(page, f"JSON.stringify({ranges}) === '[[2,4],[2,4]]'")


def test_a_click_on_a_point_opens_that_runs_groups(page, run):
    page.goto(f"/alpha/compare?runs={run.pk}&smooth=0&metric=reward/mean")
    point = page.locator("[data-curve-plot] .scatterlayer .point").nth(4)
    point.scroll_into_view_if_needed()

    # Plotly listens on its own layer above the points.
    box = point.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.click(x, y)

    page.wait_for_url(f"**/alpha/runs/{run.pk}/groups/?step=5")
