"""An environment added, tried on a row and saved in a browser."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from dashboard.datasets import environments
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.tokenizer_pool import TokenizerPool
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.jobs.working import do, take

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def processes(monkeypatch) -> Iterator[None]:
    pool = TokenizerPool()
    monkeypatch.setattr(environments, "tokenizers", pool)
    yield
    for process in pool.processes.values():
        process.close()


@pytest.mark.usefixtures("processes")
def test_a_person_adds_tries_and_saves_an_environment(team, page):
    page.goto("/alpha/datasets/environments")
    found = findings_in_each_view(page)
    page.get_by_role("button", name="Add Countdown with a calculator").click()
    expect(page.get_by_label("Environment")).to_have_value("countdown_calculator")
    expect(page.get_by_label("Python", exact=True)).to_be_hidden()
    page.get_by_label("and calls").fill("calculator")
    page.get_by_label("Arguments").fill('{"expression": "1 / (2 + 4)"}')
    page.get_by_role("button", name="Try").click()
    turns = page.get_by_role("log", name="Turns")
    expect(turns).to_contain_text("1/6", timeout=60_000)  # its process starts
    page.get_by_label("and calls").fill("")
    page.get_by_label("The policy says").fill("<answer>4 - 1 + 7</answer>")
    page.get_by_role("button", name="Try").click()
    expect(page.get_by_text("The episode ended.")).to_be_visible()
    found += findings_in_each_view(page)

    page.get_by_label("Environment").select_option("python")
    expect(page.get_by_label("Python", exact=True)).to_be_visible()
    page.get_by_label("Python", exact=True).fill("def reply(row, seed, said:")
    page.get_by_role("button", name="Start again").click()
    page.get_by_role("button", name="Try").click()
    expect(page.locator("#field-source_error")).to_contain_text("SyntaxError")
    found += findings_in_each_view(page)
    source = "def reply(row, seed, said):\n    return {'text': str(len(said))}"
    page.get_by_label("Python", exact=True).fill(source)
    page.get_by_role("button", name="Save as new version").click()
    page.wait_for_url("**/datasets/imports/*")
    do(take())

    newest = DatasetVersion.objects.latest("number")
    assert newest.number == 2
    assert newest.environment is not None
    assert newest.environment["source"] == source
    assert found == []
