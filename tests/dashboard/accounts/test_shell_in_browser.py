import pytest
from django.utils import timezone
from playwright.sync_api import expect

from dashboard.accounts.services import create_sign_in_link
from dashboard.runs.models import Run
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.completions.factories import make_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_opening_the_link_is_enough_to_sign_in(alice, open_browser):
    token = create_sign_in_link(alice)
    page = open_browser(None).new_page()

    page.goto(f"/sign-in/{token}/")

    expect(page).to_have_url("/alpha/runs/")


def test_the_theme_is_chosen_once_for_all_pages(page):
    page.emulate_media(color_scheme="light")
    page.goto("/alpha/runs/")
    html = page.locator("html")
    expect(html).to_have_attribute("data-bs-theme", "light")

    page.locator(".account-menu > summary").click()
    page.get_by_label("Dark").check()

    expect(html).to_have_attribute("data-bs-theme", "dark")
    page.goto("/help/")
    expect(html).to_have_attribute("data-bs-theme", "dark")


def test_keys_open_the_shortcuts_and_close_dialogs(page):
    page.goto("/alpha/runs/")

    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()

    page.locator(".account-menu > summary").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Sign out")).to_be_hidden()
    expect(page.locator(".account-menu > summary")).to_be_focused()


@pytest.mark.parametrize("address", ["probes/", "rewards/new"])
def test_a_page_marks_its_part_of_the_navigation(page, address):
    page.goto(f"/alpha/{address}")

    current = page.get_by_role("navigation", name="Main").locator("[aria-current]")
    expect(current).to_have_text("Rewards")


def test_enter_opens_what_was_typed_last(page, team):
    page.goto("/alpha/runs/")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("option").first).to_be_visible()

    page.keyboard.type("storage")
    page.keyboard.press("Enter")  # before the results are there

    page.wait_for_url("**/alpha/settings/storage")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("option").first).to_be_visible()
    page.keyboard.type("clip high")
    page.keyboard.press("Enter")
    page.wait_for_url("**/alpha/runs/new#field-loss-clip_high")
    expect(page.locator("#field-loss-clip_high")).to_be_focused()


def test_the_palette_is_driven_by_the_keyboard(page, team):
    run = make_run(team, "calm-otter-7")
    page.goto("/alpha/datasets/")

    page.keyboard.press("Control+k")
    search = page.get_by_role("combobox", name="Search runs")
    expect(search).to_be_focused()
    page.keyboard.type("otter")

    chosen = page.locator("[role=option][aria-selected=true]")
    expect(chosen).to_have_attribute("href", f"/alpha/runs/{run.pk}/")
    expect(search).to_have_attribute(
        "aria-activedescendant", chosen.get_attribute("id") or ""
    )
    assert findings_in_each_view(page) == []
    search.fill("signal")
    expect(chosen).to_contain_text("Signal map")
    page.keyboard.press("ArrowDown")
    expect(chosen).not_to_contain_text("Signal map")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"/alpha/runs/{run.pk}/metrics/#chart-signal-map")
    page.keyboard.press("Control+k")
    page.keyboard.press("Escape")
    expect(search).to_be_hidden()


def test_notifications_open_and_the_top_bar_fits_a_phone(page, team, alice):
    run = make_run(team)
    ended = {"state": "finished", "finished_at": timezone.now()}
    Run.objects.filter(pk=run.pk).update(owner=alice, **ended)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/alpha/compute/")
    bar = page.locator(".topbar").bounding_box()
    assert bar
    assert bar["height"] <= 100  # two rows
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    expect(page.locator("[data-news='1']")).to_be_visible()

    page.locator("[data-notifications] > summary").click()

    link = page.locator(f"[data-notifications-panel] a[href='/alpha/runs/{run.pk}/']")
    expect(link).to_be_in_viewport()
    assert findings_in_each_view(page) == []
    page.reload()
    expect(page.locator("[data-news='0']")).to_be_hidden()


def test_an_explanation_opens_and_gives_the_focus_back(page):
    page.goto("/alpha/runs/new")
    opener = page.get_by_role("link", name="About Steps", exact=True)
    opener.focus()

    page.keyboard.press("Enter")

    popover = page.get_by_role("dialog", name="About Steps")
    expect(popover).to_be_focused()
    expect(popover).to_contain_text("optim.num_steps")
    assert findings_in_each_view(page) == []
    page.keyboard.press("Escape")
    expect(popover).to_be_hidden()
    expect(opener).to_be_focused()


def test_the_open_tab_is_in_view_on_a_narrow_screen(page, team):
    run = make_run(team)
    page.set_viewport_size({"width": 390, "height": 800})
    dataset = f"/alpha/datasets/{run.dataset_version.dataset_id}"
    for address in (f"{dataset}/leaks", f"/alpha/runs/{run.pk}/checkpoints"):
        page.goto(address)

        expect(page.locator(".page-tabs [aria-current]")).to_be_in_viewport(ratio=0.9)


def test_the_first_tab_stop_skips_to_the_content(page):
    page.goto("/help/")

    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.keyboard.press("Enter")

    expect(page.locator("#content")).to_be_focused()
