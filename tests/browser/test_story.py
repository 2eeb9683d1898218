"""Launch, inspect, compare: one journey in a browser against the real stack.

A web process, a training worker and its trainer; only the model is tiny, with random
weights. The events of the second run are written to the database.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from dashboard.runs.models import Run
from tests.browser.waiting import wait_until
from tests.dashboard.runs.stories import Story
from tests.faults.tiny import save_model
from tests.faults.workers import Worker

pytestmark = [pytest.mark.slow, pytest.mark.browser(minutes=1)]
MINUTE = 60_000
NUM_STEPS = 6
FIRST_CHART = "document.querySelector('[data-chart=reward-mean]')"
SETTINGS = {
    "rollout.prompts_per_step": "4",
    "rollout.group_size": "4",
    "rollout.max_new_tokens": "12",
    "optim.num_steps": str(NUM_STEPS),
    "data.num_eval_rows": "2",
    "distributed.num_threads": "1",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("story") / "model"
    save_model(folder)
    return folder


@pytest.fixture
def worker(app_environment, tmp_path) -> Iterator[Worker]:
    worker = Worker("story", env=app_environment, log=tmp_path / "worker.log")
    yield worker
    worker.terminate()


def test_from_a_prompt_file_to_a_comparison_of_two_runs(page, worker, model):
    page.set_default_timeout(30_000)
    page.goto("/alpha/runs/")

    upload_prompts(page)
    compose_reward(page)
    first = launch(page, model)
    watch(page)
    inspect(page)
    worker.terminate()
    second = clone(page, first)
    compare(page, first, second)


def upload_prompts(page: Page) -> None:
    rows = [
        {"question": f"{a}+{b}=", "solution": str(a + b), "level": a}
        for a in range(6)
        for b in range(4)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    page.get_by_role("link", name="Datasets").click()
    page.goto("/alpha/datasets/upload")
    page.get_by_label("File", exact=True).set_input_files(
        {"name": "sums.jsonl", "mimeType": "text/plain", "buffer": text.encode()}
    )
    page.get_by_label("Prompt", exact=True).select_option("question")
    page.get_by_label("Answer", exact=True).select_option("solution")
    page.get_by_role("button", name="Import").click()

    expect(page.get_by_role("heading", level=1)).to_have_text("sums")
    expect(page.locator("main")).to_contain_text("24")


def compose_reward(page: Page) -> None:
    page.get_by_role("link", name="Rewards").click()
    page.get_by_role("main").get_by_role("link", name="New reward").first.click()
    page.get_by_label("Name", exact=True).first.fill("digits")
    page.get_by_role("button", name=re.compile("^Number")).click()
    expect(page.locator("li.rule")).to_have_count(2)
    page.get_by_role("button", name="Add rule").click()
    page.get_by_role("button", name="Add Pattern").click()
    expect(page.locator("li.rule")).to_have_count(3)
    fill(page, "rules-2-params-pattern", "[0-4][0-4]")

    # Scored on a row before it is saved: no answer block, but two digits in a row.
    page.get_by_label("Completions of row 0", exact=True).fill("=0123\n---\nab")
    scores = page.locator("#scores-0 tr")
    expect(scores).to_have_count(2)
    expect(scores.first.locator("strong")).to_have_text("1")
    expect(scores.last.locator("strong")).to_have_text("0")

    page.get_by_role("button", name="Save", exact=True).last.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("digits")


def launch(page: Page, model: Path) -> str:
    page.get_by_role("link", name="New run").click()
    page.get_by_label("Name", exact=True).fill("first-run")
    page.locator("#launch-form [name=dataset]").select_option(label="sums v1, 24 rows")
    page.locator("#launch-form [name=model]").select_option("")
    page.locator("[name=model_other]").fill(str(model))
    for name, value in SETTINGS.items():
        fill(page, name, value)
    page.get_by_role("button", name="Launch").click()
    page.wait_for_url(re.compile(r"/alpha/runs/\d+/$"))
    return page.url


def fill(page: Page, name: str, value: str) -> None:
    field = page.locator(f'[name="{name}"]')
    field.evaluate("e => { const d = e.closest('details'); if (d) d.open = true; }")
    field.fill(value)
    field.blur()


def watch(page: Page) -> None:
    """Points arrive without a page load."""
    page.evaluate("window.isTheSamePage = true")
    has_points = f"({FIRST_CHART}?.data?.at(-1)?.x?.length ?? 0)"
    wait_until(page, f"{has_points} === {NUM_STEPS}", seconds=180)
    expect(page.locator("[data-run-state]")).to_contain_text(
        "finished", timeout=3 * MINUTE
    )
    assert page.evaluate("window.isTheSamePage")
    page.reload()
    wait_until(page, f"{has_points} === {NUM_STEPS}")


def inspect(page: Page) -> None:
    """From a point to its step's samples and groups, to one group, and back."""
    click_step(page, 4)
    page.get_by_role("link", name="Open step 4").click()
    page.wait_for_url("**/groups/?step=4")
    expect(page.locator(".group-list")).to_be_visible()
    groups = page.url

    page.locator("a.group-link").first.click()
    page.wait_for_url(re.compile(r"/groups/4/\d+/"))
    expect(page.locator("[id^=completion-]")).to_have_count(4)
    for rule in ("numeric_answer", "format_tags", "regex"):
        head = page.get_by_role("columnheader", name=re.compile(rule))
        expect(head).to_be_visible()

    page.go_back()
    page.wait_for_url(groups)
    page.keyboard.press("]")
    page.wait_for_url("**/groups/?step=5")


def click_step(page: Page, step: int) -> None:
    page.locator("[data-chart=reward-mean]").scroll_into_view_if_needed()
    x, y = page.evaluate(
        f"""() => {{
            const chart = {FIRST_CHART}, at = chart.data.at(-1);
            const {{ xaxis, yaxis }} = chart._fullLayout;
            const box = chart.getBoundingClientRect();
            const i = at.x.indexOf({step});
            return [box.x + xaxis._offset + xaxis.d2p({step}),
                    box.y + yaxis._offset + yaxis.d2p(at.y[i])];
        }}"""
    )
    page.mouse.move(x, y)
    page.wait_for_timeout(200)  # until the chart finds the point under the mouse
    page.mouse.click(x, y)


def clone(page: Page, first: str) -> str:
    page.goto(first)
    page.locator(".page-actions").get_by_role("link", name="Clone").click()
    expect(page.locator('[name="optim.num_steps"]')).to_have_value(str(NUM_STEPS))
    page.get_by_label("Name", exact=True).fill("second-run")
    fill(page, "optim.learning_rate", "0.002")
    page.get_by_role("button", name="Launch").click()
    page.wait_for_url(re.compile(r"/alpha/runs/\d+/$"))
    assert page.url != first
    story = Story(Run.objects.get(name="second-run"))
    story.start()
    story.take_steps(NUM_STEPS)
    return page.url


def compare(page: Page, first: str, second: str) -> None:
    page.goto("/alpha/runs/")
    page.get_by_label("Select first-run").check()
    page.get_by_label("Select second-run").check()
    page.get_by_role("button", name="Compare", exact=True).click()

    expect(
        page.get_by_role("heading", name=re.compile("settings differ"))
    ).to_have_text(re.compile(r"^1 of \d+ settings differ"))
    expect(page.locator(".differing dt")).to_have_text("Learning rate")
    plot = "document.querySelector('[data-small-plot]')"
    lines = f"({plot}.data ?? []).filter(t => t.meta)"  # not drawn yet: none
    wait_until(page, f"{lines}.length === 2")
    assert page.evaluate(f"{lines}.map(t => t.x.length)") == [NUM_STEPS, NUM_STEPS]
    names = page.evaluate(f"{lines}.map(t => t.name)")
    assert sorted(names) == ["first-run", "second-run"]
    for address in (first, second):
        number = address.rstrip("/").rsplit("/", 1)[1]
        expect(page.locator(f'[data-run="{number}"]')).to_be_visible()
