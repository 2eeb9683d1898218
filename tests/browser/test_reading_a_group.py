"""A group's completions, read as text, rendered, or beside the best of them."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from dashboard.accounts.models import User
from dashboard.analysis.comments import add_comment
from dashboard.completions.annotations import Target
from dashboard.runs.models import Run
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.completions.factories import make_group, make_run
from tests.fixtures_app import sign_in

pytestmark = pytest.mark.browser
BEST = "Use **all** numbers:\n\n$x = \\frac{44}{4}$\n\n```python\nprint(11)\n```"
OTHER = BEST.replace("44", "48").replace("11", "12")


@pytest.fixture
def run(team) -> Run:
    run = make_run(team)
    for step in (3, 5):
        make_group(
            run,
            step=step,
            prompt_index=4,
            texts=[OTHER, BEST, "no idea"],
            rewards=(0.2, 1.2, 0.0),
        )
    return run


def test_a_key_shows_differences_and_the_url_keeps_them(page, run):
    page.goto(f"/alpha/runs/{run.pk}/groups/3/4/")
    page.set_viewport_size({"width": 1440, "height": 350})
    page.locator("#completion-0").wait_for()
    page.evaluate("scrollTo(0, 60)")

    page.keyboard.press("d")

    first = page.locator("#completion-0")
    expect(first.locator("ins")).to_have_text(["48", "12"])
    expect(first.locator("del")).to_have_text(["44", "11"])
    expect(first.locator("[data-diff-note]")).to_contain_text("2 words added")
    expect(page.locator("#completion-2 ins")).to_have_count(0)
    expect(page).to_have_url(re.compile("diff=on"))
    assert page.evaluate("scrollY") == 60
    page.reload()
    expect(first.locator("ins")).to_have_text(["48", "12"])
    page.keyboard.press("n")
    page.wait_for_url("**/groups/5/4/?diff=on")
    expect(first.locator("ins")).to_have_text(["48", "12"])
    page.keyboard.press("d")
    expect(first.locator("ins")).to_have_count(0)


@pytest.mark.slow
def test_differences_stay_when_a_completion_is_annotated(page, run):
    page.goto(f"/alpha/runs/{run.pk}/groups/3/4/?diff=on")
    first = page.locator("#completion-0")
    expect(first.locator("ins")).to_have_text(["48", "12"])
    first.hover()
    # Runs behind the page's own listener.
    page.evaluate(
        "document.addEventListener('htmx:afterSettle', () => requestAnimationFrame("
        "() => requestAnimationFrame(() => { document.body.dataset.isSettled = 1; })))"
    )

    first.get_by_role("button", name="Good").click()

    page.locator("[data-is-settled]").wait_for()
    expect(first.get_by_role("button", name="Good 1")).to_be_visible()
    assert first.locator("ins").all_text_contents() == ["48", "12"]


@pytest.mark.slow
def test_other_keys_do_nothing(page, run):
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(f"/alpha/runs/{run.pk}/groups/3/4/")
    page.locator("#completion-0").wait_for()

    page.keyboard.press('"')
    page.keyboard.press("v")  # which is read behind it

    page.locator("#text-1 strong").wait_for()
    assert faults == []


@pytest.mark.slow
def test_a_key_renders_markdown_and_formulas(page, run):
    page.goto(f"/alpha/runs/{run.pk}/groups/3/4/")

    page.keyboard.press("v")

    text = page.locator("#text-1")
    expect(text.locator("strong")).to_have_text("all")
    expect(text.locator("pre")).to_have_text("print(11)\n")
    expect(text.locator("math mfrac")).to_have_count(1)
    chosen = page.locator("[data-view][aria-current]")
    expect(chosen).to_have_attribute("data-view", "rendered")
    expect(page).to_have_url(re.compile("view=rendered"))


@pytest.mark.slow
def test_a_swipe_reads_the_next_completion(run, alice, browser, live_app):
    phone = {"width": 390, "height": 844}
    context = browser.new_context(base_url=live_app, viewport=phone, has_touch=True)
    sign_in(context, alice, live_app)
    page = context.new_page()
    page.goto(f"/alpha/runs/{run.pk}/groups/3/4/")
    best, second, worst = (page.locator(f"#completion-{n}") for n in (1, 0, 2))
    best.locator(".row-toggle").click()

    swipe(page, best, across=-150)
    expect(second).to_be_focused()
    expect(second).to_have_class(re.compile("is-open"))
    expect(best).not_to_have_class(re.compile("is-open"))
    swipe(page, page.locator("#more-0"), across=-150)
    expect(worst).to_be_focused()
    swipe(page, worst, across=150)
    expect(second).to_be_focused()
    swipe(page, second, across=-80, along=150)  # a scroll
    expect(second).to_be_focused()
    context.close()


def swipe(page: Page, over: Locator, *, across: int, along: int = 0) -> None:
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    x, y = 195 - across // 2, box["y"] + box["height"] / 2
    session = page.context.new_cdp_session(page)
    for kind, part in (("Start", 0.0), ("Move", 0.5), ("Move", 1.0), ("End", None)):
        at = part is not None and {"x": x + part * across, "y": y + part * along}
        touch = {"type": f"touch{kind}", "touchPoints": [at] if at else []}
        session.send("Input.dispatchTouchEvent", touch)
    session.detach()


@pytest.mark.slow
def test_completions_are_cards_on_request(page, run):
    page.goto(f"/alpha/runs/{run.pk}/groups/3/4/")

    page.get_by_role("link", name="Cards").click()

    expect(page.get_by_role("heading", name="Completion 1")).to_be_visible()
    expect(page.locator(".completion-table")).to_have_count(0)
    expect(page).to_have_url(re.compile("layout=cards"))


@pytest.mark.slow
def test_completions_are_annotated_without_leaving_the_page(page, run):
    page.goto(f"/alpha/runs/{run.pk}/groups/3/4/")
    first = page.locator("#completion-0")
    page.set_viewport_size({"width": 1440, "height": 350})
    page.evaluate("scrollTo(0, 60)")
    first.hover()

    first.get_by_role("button", name="Good").click()
    expect(first.get_by_role("button", name="Good")).to_have_attribute(
        "aria-pressed", "true"
    )
    expect(first.get_by_role("button", name="Good")).to_be_focused()
    first.get_by_role("combobox", name="Tag for completion 1").fill("reward hack")
    page.keyboard.press("Enter")
    expect(first.get_by_role("link", name="reward-hack")).to_be_visible()
    expect(first.locator(".htmx-added")).to_have_count(0)  # its forms are known to htmx
    first.get_by_role("combobox", name="Tag for completion 1").fill("<x>")
    page.keyboard.press("Enter")
    expect(first.get_by_role("alert")).to_contain_text("'<x>'")
    first.get_by_text("Comment", exact=True).first.click()
    first.get_by_role("textbox", name="Comment on completion 1").fill("It guesses.")
    first.get_by_role("button", name="Comment").click()
    expect(first.get_by_text("It guesses.")).to_be_visible()
    assert page.evaluate("scrollY") > 0
    page.reload()
    expect(first.get_by_text("It guesses.")).to_be_visible()
    expect(first.get_by_role("button", name="Good 1")).to_be_visible()
    assert findings_in_each_view(page) == []

    first.get_by_role("link", name="reward-hack").click()
    page.wait_for_url("**/completions/?tag=reward-hack")
    expect(page.get_by_role("listitem").filter(has_text="▲ good")).to_have_count(1)
    assert findings_in_each_view(page) == []


@pytest.mark.slow
def test_an_unfinished_comment_survives_other_annotations(page, run):
    page.goto(f"/alpha/runs/{run.pk}/groups/3/4/")
    first = page.locator("#completion-0")
    first.hover()
    first.get_by_text("Comment", exact=True).first.click()
    comment = first.get_by_role("textbox", name="Comment on completion 1")
    comment.fill("It guesses, be")

    first.get_by_role("button", name="Good").click()

    expect(first.get_by_role("button", name="Good 1")).to_be_visible()
    expect(comment).to_have_value("It guesses, be")
    comment.fill("It guesses.")
    first.get_by_role("button", name="Comment").click()
    expect(first.locator(".comment-text")).to_have_text("It guesses.")
    expect(comment).to_have_value("")


@pytest.mark.slow
def test_a_mention_is_found_from_any_page(page, run, team):
    group = run.groups.get(step=3)
    bob = User.objects.create_user("bob2")
    add_comment(bob, Target(group, 1), "@alice is this the prompt you meant?")
    page.goto(f"/alpha/runs/{run.pk}/")

    expect(page.locator("[data-news]")).to_have_attribute("data-news", "1")
    page.locator("[data-notifications] summary").click()
    expect(page.locator("[data-notifications-panel]")).to_contain_text("is this the")
    page.get_by_role("link", name="All mentions").click()
    expect(page.get_by_text("is this the prompt you meant?")).to_be_visible()
    assert findings_in_each_view(page) == []

    page.get_by_role("link", name="step 3, prompt 4, completion 2").click()
    expect(page.locator("#completion-1")).to_contain_text("is this the prompt")
    expect(page.locator("[data-news]")).to_have_attribute("data-news", "0")
