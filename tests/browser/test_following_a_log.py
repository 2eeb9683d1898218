"""A log in a real browser, while it is written."""

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from dashboard.accounts.models import Team
from dashboard.runs.models import Run, RunState
from dashboard.runs.queries import run_directory
from dashboard.supervision.lease import claim_run
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.completions.factories import make_run

pytestmark = pytest.mark.browser
AT_END = "e => e.scrollHeight - e.scrollTop - e.clientHeight < 8"


@pytest.fixture
def log(team) -> Path:
    run = make_run(team)
    Run.objects.filter(id=run.id).update(state=RunState.QUEUED, attempt=0)
    claim_run(run.id, "training@gpu-1")
    path = run_directory(run.id).attempt(1).trainer_log
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    write(path, 1, 700)
    return path


def write(path: Path, first: int, last: int) -> None:
    with path.open("a") as file:
        file.writelines(f"step {n}/900  reward 0.3\n" for n in range(first, last + 1))


def open_logs(page: Page, team: Team, query: str = "") -> None:
    page.goto(f"/alpha/runs/{Run.objects.get(team=team).id}/logs/{query}")
    page.locator(".log-line").first.wait_for()


@pytest.mark.slow
def test_lines_are_streamed_and_do_not_scroll_a_reader(page, team, log):
    open_logs(page, team)
    view = page.locator("[data-log-view]")
    expect(page.locator("#L700")).to_be_visible()

    write(log, 701, 703)
    expect(page.locator("#L703")).to_be_visible()
    assert view.evaluate(AT_END)

    for rank in range(8):
        write(log.with_name(f"rank-{rank}.log"), 1, 3 + rank)
    page.reload()
    page.get_by_label("Rank", exact=True).select_option("2")
    expect(page.locator("[data-log]")).to_have_attribute("data-source", "rank-2")
    expect(page.locator("#L5")).to_be_visible()
    write(log.with_name("rank-2.log"), 6, 6)
    expect(page.locator("#L6")).to_be_visible()
    page.get_by_label("Rank", exact=True).select_option("all")
    expect(page.locator("#L703")).to_be_visible()

    view.evaluate("e => { e.scrollTop = 900; }")
    place = view.evaluate("e => e.scrollTop")
    write(log, 704, 715)
    newer = page.get_by_role("button", name="12 new lines ↓")
    expect(newer).to_be_visible()
    assert view.evaluate("e => e.scrollTop") == place

    newer.click()
    expect(page.locator("#L715")).to_be_in_viewport()
    expect(newer).to_be_hidden()


@pytest.mark.slow
def test_log_lines_are_escaped(page, team, log):
    log.write_text("<img src=x onerror=alert(1)> \x1b[31mred\x1b[0m \u202etxt\n")

    open_logs(page, team)

    shown = page.locator("#L1 .log-text")
    expect(shown).to_have_text("<img src=x onerror=alert(1)> red \\u202etxt")
    assert page.locator(".log img").count() == 0


def test_the_whole_log_is_searched_and_a_line_has_an_address(page, team, log):
    write(log, 701, 900)
    open_logs(page, team)
    assert page.locator("#L7").count() == 0  # not loaded yet

    page.get_by_label("Search the whole log").fill(r"^step \d+7/")
    page.get_by_label("Regex").check()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Search", exact=True).click()

    expect(page.locator("[data-log-found]")).to_contain_text("of 89")
    expect(page.locator(".log-line.is-current mark")).to_be_in_viewport()
    page.get_by_role("button", name="Next match").click()
    assert "regex=1" in page.url

    open_logs(page, team, "#L42")
    expect(page.locator("#L42.is-current")).to_be_in_viewport()


@pytest.mark.slow
def test_a_page_holds_two_thousand_lines_and_loads_the_earlier_ones(
    page, team, log, count
):
    write(log, 701, 5_000)
    open_logs(page, team)
    assert count() == 500

    for wanted in (1_000, 1_500, 2_000, 2_000):
        before = page.locator(".log-line").first.get_attribute("id")
        page.get_by_role("button", name="Load earlier lines").click()
        expect(page.locator(".log-line").first).not_to_have_id(before or "")
        assert count() == wanted

    expect(page.get_by_role("button", name="Load later lines")).to_be_attached()


@pytest.fixture
def count(page) -> Callable[[], int]:
    return lambda: page.locator(".log-line").count()


@pytest.mark.slow
def test_an_address_of_merged_lines_shows_the_trainers_and_the_worker_has_a_tab(
    page, team, log
):
    log.write_text("")
    write(log, 1, 2)
    seen = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    log.with_name("trainer.times").write_bytes(
        struct.pack("<Qd", log.stat().st_size, seen)
    )
    log.with_name("supervisor.log").write_text(
        "2026-01-02 03:04:04.900 Claimed by training@gpu-1.\n"
        "2026-01-02 03:04:05.100 Asked the trainer to save and stop.\n"
    )

    open_logs(page, team, "?source=both#W2")
    lines = page.locator(".log-line")
    expect(lines).to_have_count(2)
    write(log, 3, 3)
    expect(lines).to_have_count(3)
    expect(page.locator("#L1 time")).to_have_text("03:04:05")

    page.get_by_role("link", name="Worker", exact=True).click()
    expect(page.locator("[data-log]")).to_have_attribute("data-source", "supervisor")
    expect(page.locator("#L1 time")).to_be_hidden()
    page.get_by_label("Search the whole log").fill("save and stop")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator("#L2.is-current mark")).to_have_text("save and stop")
    assert findings_in_each_view(page) == []
