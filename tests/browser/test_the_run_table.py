"""The run list as a person works with it, over runs of a real worker and trainer."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from dashboard.accounts.models import User
from dashboard.runs.models import MetricSummary, Run, RunStar, SavedView
from tests.browser.accessibility import findings, findings_in_each_view
from tests.browser.waiting import wait_for
from tests.dashboard.supervision.factories import Launcher
from tests.faults.tiny import config_tree, save_model
from tests.faults.workers import Worker

pytestmark = [pytest.mark.browser, pytest.mark.slow]
RATE = "config.optim.learning_rate"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("table") / "model"
    save_model(folder)
    return folder


@pytest.fixture
def worker(app_environment, tmp_path) -> Iterator[Worker]:
    worker = Worker("table", env=app_environment, log=tmp_path / "worker.log")
    yield worker
    worker.terminate()


@pytest.fixture
def problems(page) -> list[str]:
    """What the browser complained of, the content security policy included."""
    found: list[str] = []
    page.on("console", lambda m: found.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    return found


def launch(launcher: Launcher, model: Path, name: str, rate: float) -> Run:
    tree: dict[str, Any] = config_tree(model, num_steps=40)
    tree["optim"]["learning_rate"] = rate
    return launcher(name=name, **tree)


def test_runs_are_found_compared_saved_and_trashed(
    page, team, alice, model, worker, problems
):
    launcher = Launcher(team, alice)
    first = launch(launcher, model, "slow-otter", 1e-4)
    second = launch(launcher, model, "quick-lynx", 1e-3)
    page.set_default_timeout(30_000)

    watch_chosen_columns(page, first, second)
    complete_a_query(page, second)
    show_a_query_error(page)
    group(page)
    mark(page, alice, first, second)
    keep_a_view(page)
    move_to_trash(page, first)
    assert problems == []


def watch_chosen_columns(page: Page, first: Run, second: Run) -> None:
    """A column added while the runs train updates live."""
    page.goto("/alpha/runs/")
    page.get_by_role("button", name="Columns").click()
    dialog = page.get_by_role("dialog", name="Columns")
    dialog.get_by_role("button", name="Remove Owner").click()
    dialog.get_by_label("Add", exact=True).fill("learning")
    dialog.get_by_role("button", name="Add optim.learning_rate setting").click()
    for _ in range(7):
        dialog.get_by_role("button", name="Move optim.learning_rate setting up").click()
    assert findings(page) == []
    dialog.get_by_role("button", name="Apply").click()
    page.wait_for_url("**cols=**")
    titles = page.locator("thead th").all_text_contents()
    assert [" ".join(title.split()) for title in titles[2:5]] == [
        "State",
        "optim.learning_rate",
        "Reward last",
    ]

    row = page.locator(f"tr[data-run='{first.pk}']")
    last = row.locator("[data-cell='reward/mean.last']")
    # Without a reload, from no value to the one that ingest has stored.
    expect(row.locator(".state")).to_have_text("finished", timeout=120_000)
    expect(last).not_to_have_text("–")
    other = page.locator(f"tr[data-run='{second.pk}']")
    expect(other.locator(".state")).to_have_text("finished", timeout=120_000)
    summary = MetricSummary.objects.get(run=first, name="reward/mean")
    assert summary.num == 40
    wait_for(
        page, lambda: float(last.inner_text()) == pytest.approx(summary.last, rel=1e-3)
    )


def complete_a_query(page: Page, second: Run) -> None:
    """By keyboard alone: a key, its operator, a value."""
    page.keyboard.press("/")
    search = page.get_by_role("combobox", name="Search")
    expect(search).to_be_focused()
    search.press_sequentially("learning")
    options = page.get_by_role("listbox", name="Keys and values").get_by_role("option")
    expect(options.first).to_contain_text(RATE)
    assert findings(page) == []
    page.keyboard.press("ArrowDown")
    expect(search).to_have_attribute("aria-activedescendant", "suggestion-0")
    page.keyboard.press("Enter")
    expect(search).to_have_value(f"{RATE} ")
    search.press_sequentially("= 0.0")
    page.keyboard.press("Escape")
    search.press_sequentially("01 state:fin")
    expect(options.first).to_contain_text("finished")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    expect(search).to_have_value(f"{RATE} = 0.001 state:finished ")
    page.keyboard.press("Enter")

    page.wait_for_url("**q=**")
    expect(page.locator("tr[data-run]")).to_have_count(1)
    expect(page.locator(f"tr[data-run='{second.pk}']")).to_be_visible()


def show_a_query_error(page: Page) -> None:
    search = page.get_by_role("combobox", name="Search")
    search.fill("state:runing")
    search.press("Enter")

    expect(page.get_by_role("alert")).to_contain_text("'runing'")
    expect(page.get_by_role("alert").locator("mark")).to_have_text("runing")
    assert findings_in_each_view(page) == []
    page.get_by_role("link", name="Clear filters").click()
    expect(page.locator("tr[data-run]")).to_have_count(2)


def group(page: Page) -> None:
    page.get_by_text("Group", exact=True).first.click()
    by = page.get_by_label("Group by")
    by.fill(RATE)
    by.press("Enter")
    page.wait_for_url("**by=**")

    groups = page.locator(".group-row")
    expect(groups).to_have_count(2)
    expect(groups.first).to_contain_text("optim.learning_rate 0.0001")
    expect(groups.first).to_contain_text("n 1")
    expect(page.locator("tr[data-run]")).to_have_count(0)
    toggle = groups.first.locator(".group-toggle")
    toggle.click()
    expect(page.locator("tr[data-run]")).to_have_count(1)
    expect(page).to_have_url(re.compile("open="))
    assert findings_in_each_view(page) == []
    page.reload()
    expect(page.locator("tr[data-run]")).to_have_count(1)
    groups.last.get_by_role("link", name="list these runs").click()
    expect(page.locator("tr[data-run]")).to_have_count(1)
    expect(page.get_by_role("combobox", name="Search")).to_have_value(f"{RATE}:0.001")
    page.get_by_role("link", name="Clear filters").click()
    expect(page.locator("tr[data-run]")).to_have_count(2)


def mark(page: Page, alice: User, first: Run, second: Run) -> None:
    """A star, a tag and a lock."""
    page.get_by_role("button", name="Star quick-lynx").click()
    star = page.get_by_role("button", name="Star quick-lynx")
    expect(star).to_have_attribute("aria-pressed", "true")
    wait_for(page, RunStar.objects.filter(user=alice).exists)

    page.get_by_label("Select every run on this page").check()
    expect(page.get_by_text("2 selected")).to_be_visible()
    open_actions(page)
    assert findings(page) == []
    page.locator(".list-bar summary").first.click()
    page.get_by_label("Tag", exact=True).fill("baseline")
    page.get_by_label("Tag", exact=True).press("Enter")
    expect(page.get_by_text("2 runs were tagged.")).to_be_visible()
    expect(page.locator("tr[data-run] .tag")).to_have_text(["baseline", "baseline"])

    page.get_by_label("Select quick-lynx").check()
    open_actions(page)
    page.get_by_role("button", name="Lock", exact=True).click()
    expect(page.get_by_text("quick-lynx was locked.")).to_be_visible()
    page.get_by_label("Select every run on this page").check()
    page.get_by_role("button", name="Archive", exact=True).click()
    for part in ("slow-otter", f"quick-lynx (#{second.pk}) is locked"):
        expect(page.locator("#messages")).to_contain_text(part)
    expect(page.locator("tr[data-run]")).to_have_count(1)

    page.goto(f"/alpha/runs/{second.pk}/")
    expect(page.get_by_text("Locked by Alice")).to_be_visible()
    page.goto(f"/alpha/runs/{first.pk}/")
    page.get_by_label("More actions").click()
    page.get_by_role("button", name="Unarchive").click()
    expect(page.locator("#messages")).to_contain_text("unarchived")
    page.get_by_label("More actions").click()
    page.get_by_role("button", name="Name, notes, tags").click()
    dialog = page.get_by_role("dialog", name="Name, notes, tags")
    assert findings(page) == []
    dialog.get_by_label("Notes").fill("Reference.")
    dialog.get_by_role("button", name="Save").click()
    expect(page.locator(".run-notes")).to_have_text("Reference.")


def open_actions(page: Page) -> None:
    page.locator(".list-bar summary").last.click()


def keep_a_view(page: Page) -> None:
    page.goto("/alpha/runs/?q=tag:baseline&sort=-reward/mean.best")
    page.locator(".list-heading summary").first.click()
    page.get_by_label("Save view as").fill("Baselines")
    page.get_by_role("button", name="Save view").click()
    expect(page.get_by_text("Saved view Baselines")).to_be_visible()
    view = SavedView.objects.get()

    page.goto(f"/alpha/runs/views/{view.code}/")
    expect(page.get_by_role("combobox", name="Search")).to_have_value("tag:baseline")
    page.locator(".list-heading summary").first.click()
    assert findings_in_each_view(page) == []
    page.get_by_role("button", name="Open by default").click()
    page.goto("/alpha/runs/")
    expect(page).to_have_url(re.compile(f"view={view.code}"))
    page.get_by_text("Filter", exact=True).click()
    page.get_by_label("State").select_option("failed")
    expect(page.locator(".list-heading summary").first).to_contain_text("(changed)")


def move_to_trash(page: Page, first: Run) -> None:
    page.goto("/alpha/runs/?view=")
    page.get_by_label("Select slow-otter").check()
    open_actions(page)
    page.get_by_role("button", name="Move to trash").click()
    expect(page.get_by_text("slow-otter was moved")).to_be_visible()
    expect(page.locator("tr[data-run]")).to_have_count(1)
    page.get_by_role("link", name="Trash (1)").click()
    page.get_by_role("link", name="slow-otter").click()
    expect(page.get_by_role("button", name="Restore")).to_be_visible()
    assert findings_in_each_view(page) == []
    page.get_by_role("button", name="Restore").click()
    expect(page.locator("[data-run-state]")).to_have_text("finished")
