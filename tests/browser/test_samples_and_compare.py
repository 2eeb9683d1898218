"""Groups, one group, completions and compare, as a reader uses them in a browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from dashboard.accounts.models import Team, User
from dashboard.runs.models import Run
from tests.browser.accessibility import findings
from tests.browser.waiting import wait_until
from tests.dashboard.samples.factories import make_group, make_run, make_steps

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
]
LONG = "\n".join(f"Try {i}: 3 * {i} = {3 * i}" for i in range(60))


@pytest.fixture
def run(team: Team) -> Run:
    run = make_run(team, "calm-otter-1")
    make_steps(run, {"reward/mean": [0.1 * s for s in range(1, 10)]})
    for step in (3, 5, 9):
        make_group(run, step=step, prompt_index=4, texts=[LONG, "b", "b", "d"])
        make_group(run, step=step, prompt_index=6, rewards=(0.0, 0.0))
        make_group(run, step=step, prompt_index=8, rewards=(1.2, 1.2))
        make_group(run, step=step, prompt_index=9, rewards=(None, 0.2))
    return run


def test_the_bracket_keys_walk_through_the_steps(page: Page, run: Run) -> None:
    page.goto(f"/alpha/runs/{run.pk}/groups/?step=5&signal=mixed")

    page.keyboard.press("[")
    page.wait_for_url("**/groups/?step=3&signal=mixed")
    page.keyboard.press("}")
    page.wait_for_url("**/groups/?step=9&signal=mixed")

    assert page.get_by_role("row").count() == 2  # the header and one mixed group


def test_a_key_typed_into_a_field_moves_nothing(page: Page, run: Run) -> None:
    page.goto(f"/alpha/runs/{run.pk}/groups/?step=5")

    page.get_by_role("spinbutton", name="Step").press("[")

    expect(page).to_have_url(re.compile(r"step=5$"))


def test_the_slider_goes_to_the_nearest_step_with_groups(page: Page, run: Run) -> None:
    page.goto(f"/alpha/runs/{run.pk}/groups/")

    slider = page.get_by_role("slider")
    slider.evaluate("e => { e.value = 4; e.dispatchEvent(new Event('input')) }")
    expect(page.get_by_role("spinbutton", name="Step")).to_have_value("4")
    slider.dispatch_event("change")

    expect(page.locator(".stepper-note")).to_contain_text("Step 4")


def test_a_group_is_read_by_keyboard(page: Page, run: Run) -> None:
    page.goto(f"/alpha/runs/{run.pk}/groups/5/4/")

    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("#completion-1")).to_be_focused()
    page.keyboard.press("k")
    expect(page.locator("#completion-0")).to_be_focused()
    page.keyboard.press("n")
    page.wait_for_url("**/groups/9/4/")
    page.keyboard.press("]")
    page.wait_for_url("**/groups/9/6/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("previous completion")


def test_a_long_completion_opens_and_a_short_one_has_no_button(
    page: Page, run: Run
) -> None:
    page.goto(f"/alpha/runs/{run.pk}/groups/5/4/")

    button = page.get_by_role("button", name="Show all")
    expect(button).to_have_count(1)
    before = page.locator("#text-0").bounding_box()
    button.click()
    after = page.locator("#text-0").bounding_box()

    assert before is not None
    assert after is not None
    assert after["height"] > before["height"]


def test_the_link_to_a_completion_is_copied(
    alice: User, run: Run, open_browser: Callable[[User | None], BrowserContext]
) -> None:
    context = open_browser(alice)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"/alpha/runs/{run.pk}/groups/5/4/?sort=-reward")

    page.locator("#completion-2").get_by_role("button", name="Copy link").click()

    expect(page.get_by_text("Link copied.")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.endswith(
        f"/alpha/runs/{run.pk}/groups/5/4/?sort=-reward#completion-2"
    )


def test_a_change_of_metric_redraws_and_is_kept_in_the_address(
    page: Page, team: Team, run: Run
) -> None:
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


def test_one_line_moves_through_all_charts_and_a_zoom_is_shared(
    page: Page, team: Team, run: Run
) -> None:
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


def test_a_click_on_a_point_opens_that_runs_groups(page: Page, run: Run) -> None:
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


ADDRESSES = {
    "groups": "/alpha/runs/{run}/groups/",
    "group": "/alpha/runs/{run}/groups/5/4/",
    "completions": "/alpha/runs/{run}/completions/?text=b&sort=-reward",
    "compare": "/alpha/compare?runs={run},{other}&settings=all&prompt=4&metric=loss",
    "choosing": "/alpha/compare",
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_pages_are_accessible_and_fit_the_screen(
    page: Page, team: Team, run: Run, theme: str, width: int
) -> None:
    other = make_run(team, "brave-finch-2", dataset_version=run.dataset_version)
    make_steps(other, {"reward/mean": [0.5, 0.6]})
    page.set_viewport_size({"width": width, "height": 900})
    page.add_init_script(f"localStorage.setItem('theme', '{theme}')")
    found: dict[str, Any] = {}
    page.on("console", lambda m: found.setdefault(m.text, m.type))
    page.on("pageerror", lambda error: found.setdefault(str(error), "error"))

    for name, address in ADDRESSES.items():
        page.goto(address.format(run=run.pk, other=other.pk))
        page.wait_for_load_state("networkidle")
        if problems := findings(page):
            found[name] = problems

    assert found == {}
