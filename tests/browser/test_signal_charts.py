"""What a run learns from, in a real browser, while the run goes on."""

import pytest
from playwright.sync_api import expect

from tests.browser.tabs import DelayedResponses, hide, show
from tests.browser.waiting import wait_until
from tests.dashboard.runs.stories import Story, queue_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]
MAP = '[data-signal-chart="map"]'
COLUMNS = f"document.querySelector('{MAP}').data?.[0].x"


def take_step(story: Story, *prompts: int) -> None:
    story.step += 1
    for prompt in prompts:
        story.score_group(prompt)
    story.step -= 1
    story.take_steps(1)


def test_the_map_grows_and_leads_to_groups(page, team):
    problems: list[str] = []
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    story = Story(queue_run(team))
    story.start()
    for _ in range(3):
        take_step(story, 4, 6)
    run = f"/alpha/runs/{story.run.id}/"
    page.goto(f"{run}metrics/")
    page.get_by_role("heading", name="Signal map").scroll_into_view_if_needed()
    wait_until(page, f"{COLUMNS}?.length === 3")

    take_step(story, 4)
    # The slower the answers, the longer charts wait for the next.
    wait_until(page, f"{COLUMNS}.length === 4", seconds=90)
    assert page.evaluate(f"document.querySelector('{MAP}').data[2].z") == [
        [0.577] * 4,
        [*[0.577] * 3, None],
    ]

    page.get_by_label("Rows by").select_option("dataset")
    page.locator(".chart-gear").click()
    page.get_by_label("First step shown").fill("2")
    page.get_by_label("First step shown").press("Enter")
    page.keyboard.press("Escape")
    page.get_by_role("heading", name="Signal map").scroll_into_view_if_needed()
    wait_until(page, f"{COLUMNS}.length === 3")
    assert page.url.endswith("?rows=dataset&from=2&to=4")
    page.reload()
    page.get_by_role("heading", name="Signal map").scroll_into_view_if_needed()
    wait_until(page, f"{COLUMNS}?.length === 3")

    page.locator("summary", has_text="Signal map as a table").press("Enter")
    first = page.get_by_role("region", name="Signal map, numbers").locator("tbody tr")
    expect(first.first.locator("td")).to_have_text(["1", "0", "0", "0", "0", "4", "4"])
    expect(first.first.get_by_role("link", name="step 4")).to_have_attribute(
        "href", f"{run}groups/?step=4"
    )

    # Two charts of one answer, one of them not in view when it came.
    for chart in ("mean", "variance"):
        page.locator(f'[data-signal-chart="{chart}"]').scroll_into_view_if_needed()
        wait_until(
            page,
            f"document.querySelector('[data-signal-chart=\"{chart}\"]')"
            ".data?.[0].y.join() === '1,1,1'",
        )

    page.get_by_role("button", name="Whole run").click()
    page.get_by_role("heading", name="Signal map").scroll_into_view_if_needed()
    wait_until(page, f"{COLUMNS}.length === 4")
    # The lower row at step 3: the lower half, the third column of four.
    box = page.locator(f"{MAP} .xy .nsewdrag").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] * 5 / 8, box["y"] + box["height"] * 3 / 4
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.up()
    page.wait_for_url(f"**{run}groups/3/6/")
    assert problems == []


def test_an_answer_that_comes_to_a_hidden_tab_is_drawn_when_it_is_seen(page, team):
    story = Story(queue_run(team))
    story.start()
    take_step(story, 4, 6)
    page.goto(f"/alpha/runs/{story.run.id}/metrics/")
    page.get_by_role("heading", name="Signal map").scroll_into_view_if_needed()
    wait_until(page, f"{COLUMNS}?.length === 1")
    held = DelayedResponses(page, "**/signals/map.json*")
    page.get_by_label("Rows by").select_option("difficulty")
    held.wait_for_one()
    take_step(story, 4)

    hide(page)
    held.release()
    page.wait_for_timeout(300)
    assert page.evaluate(f"{COLUMNS}.length") == 1

    show(page)
    wait_until(page, f"{COLUMNS}.length === 2")


def test_a_zoom_applies_to_all_charts(page, team):
    story = Story(queue_run(team))
    story.start()
    for _ in range(9):
        take_step(story, 4, 6)
    page.goto(f"/alpha/runs/{story.run.id}/metrics/?smooth=0")
    page.get_by_role("heading", name="Signal map").scroll_into_view_if_needed()
    wait_until(page, f"{COLUMNS}?.length === 9")
    box = page.locator(f"{MAP} .xy .nsewdrag").bounding_box()
    assert box is not None

    # From the middle of the third of nine columns to the middle of the sixth.
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 2.5 / 9, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 5.5 / 9, y, steps=5)
    page.mouse.up()

    wait_until(page, "location.search.includes('from=')")
    first, last = (
        int(page.get_by_label(f"{end} step shown").input_value())
        for end in ("First", "Last")
    )
    assert (first, last) in {(3, 6), (4, 6), (3, 5), (4, 5)}
    wait_until(
        page, f"{COLUMNS}.join() === '{','.join(map(str, range(first, last + 1)))}'"
    )
    reward = page.locator('[data-chart="reward-mean"]')
    reward.scroll_into_view_if_needed()
    chart = "document.querySelector('[data-chart=\"reward-mean\"]')"
    wait_until(page, f"{chart}.layout?.xaxis.range?.join() === '{first},{last}'")

    # And one of the run's charts is one of the signal charts.
    box = reward.locator(".nsewdrag").bounding_box()
    assert box is not None
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    wait_until(page, "!location.search.includes('from=')")
    page.get_by_role("heading", name="Signal map").scroll_into_view_if_needed()
    wait_until(page, f"{COLUMNS}.length === 9")


def test_k_of_pass_at_k_is_chosen_and_in_the_link(page, team):
    story = Story(queue_run(team))
    story.start()
    for _ in range(3):
        take_step(story, 4, 6)
    chart = page.locator('[data-signal-chart="passes"]')
    names = (
        "document.querySelector('[data-signal-chart=\"passes\"]')"
        ".data?.map(({ name }) => name).join()"
    )
    page.goto(f"/alpha/runs/{story.run.id}/metrics/")
    chart.scroll_into_view_if_needed()
    wait_until(page, f"{names} === 'pass@1,pass@4,maj@4'")
    slider = page.get_by_role("slider", name="k of pass@k")

    slider.focus()
    page.keyboard.press("ArrowLeft")

    wait_until(page, f"{names} === 'pass@1,pass@3,maj@3'")
    expect(page.get_by_text("k = 3", exact=True)).to_be_visible()
    assert page.url.endswith("?k=3")
    page.reload()
    chart.scroll_into_view_if_needed()
    wait_until(page, f"{names} === 'pass@1,pass@3,maj@3'")
    slider.focus()
    page.keyboard.press("ArrowRight")
    wait_until(page, f"{names} === 'pass@1,pass@4,maj@4'")
    assert "k=" not in page.url
