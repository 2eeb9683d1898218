"""Inspection of runs from a real trainer.

Four runs of a tiny model, two learning rates by two seeds, by a real worker; then each
way there is to inspect and to compare them, in one browser.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from dashboard.accounts.models import Team, User
from dashboard.completions.models import GroupTokens
from dashboard.runs.models import Run, RunState
from tests.browser.waiting import wait_for, wait_until
from tests.dashboard.supervision.factories import Launcher
from tests.faults.tiny import config_tree, save_model
from tests.faults.workers import Worker

pytestmark = [pytest.mark.browser, pytest.mark.slow]
RULES = [
    {
        "name": "digits",
        "kind": "regex",
        "weight": 1.0,
        "params": {"pattern": "[0-4][0-4]"},
    },
    {"name": "letters", "kind": "regex", "weight": 0.5, "params": {"pattern": "[a-f]"}},
]
NUM_STEPS = 40
NUM_COMPLETIONS = 640
SETTLED = (RunState.FINISHED, RunState.FAILED)


@pytest.fixture
def workers(app_environment, tmp_path) -> Iterator[None]:
    started = [
        Worker(queue, env=app_environment, log=tmp_path / f"{queue}.log", queue=queue)
        for queue in ("training", "default")
    ]
    yield
    for worker in started:
        worker.terminate()


@pytest.fixture
def problems(page) -> list[str]:
    found: list[str] = []
    page.on("console", lambda m: found.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    return found


def launch_all(team: Team, user: User, folder: Path) -> list[Run]:
    save_model(folder)
    launcher = Launcher(team, user)
    runs = []
    for rate in (1e-4, 3e-3):
        for seed in (1, 2):
            tree: dict[str, Any] = config_tree(folder, num_steps=NUM_STEPS)
            tree["seed"] = seed
            tree["reward"] = {"recipe": {"rules": RULES}}
            tree["optim"]["learning_rate"] = rate
            tree["evaluation"]["every_steps"] = 3
            tree["loss"] = {"kl_coef": 0.01}
            runs.append(launcher(name=f"rate-{rate:g}-seed-{seed}", **tree))
    return runs


def test_runs_are_inspected_and_compared(
    page, team, alice, workers, problems, open_browser, tmp_path
):
    page.set_default_timeout(30_000)
    runs = launch_all(team, alice, tmp_path / "model")
    page.goto(f"/alpha/runs/{runs[0].pk}/")
    wait_for(page, lambda: all_are_settled(runs), seconds=400)
    states = Run.objects.order_by("pk").values_list("state", "fail_reason")
    assert list(states) == [(RunState.FINISHED, "")] * 4
    run = Run.objects.get(pk=runs[2].pk)

    choose_k(page, run)
    read_a_group(page, run)
    read_tokens(page, run)
    mark(page, run)
    find_completions(page, run)
    follow_a_prompt(page, run)
    rescore(page, run)
    audit(page, run)
    compare_seeds(page, runs)
    compare_a_prompt(page, runs)
    look_at_a_sweep(page, runs)
    report(page, open_browser, runs)
    export(page, run)
    assert problems == []


def all_are_settled(runs: list[Run]) -> bool:
    ids = [run.pk for run in runs]
    return Run.objects.filter(pk__in=ids, state__in=SETTLED).count() == len(ids)


def choose_k(page: Page, run: Run) -> None:
    """pass@k over training, by a slider, next to the mean."""
    page.goto(f"/alpha/runs/{run.pk}/metrics/")
    chart = "document.querySelector('[data-signal-chart=\"passes\"]')"
    page.locator('[data-signal-chart="passes"]').scroll_into_view_if_needed()
    wait_until(page, f"{chart}.data?.some(({{ name }}) => name === 'pass@4')")
    page.get_by_role("slider", name="k of pass@k").focus()
    page.keyboard.press("ArrowLeft")
    wait_until(page, f"{chart}.data?.some(({{ name }}) => name === 'pass@3')")


def read_a_group(page: Page, run: Run) -> None:
    page.goto(f"/alpha/runs/{run.pk}/groups/?step=20")
    page.locator("a.group-link").first.click()
    page.wait_for_url(re.compile(r"/groups/20/\d+/"))
    expect(page.locator("[id^=completion-]")).to_have_count(4)
    for rule in ("digits", "letters"):
        expect(page.get_by_role("columnheader", name=rule)).to_be_visible()
    page.keyboard.press("J")
    expect(page.locator("[data-completion]").first).to_be_focused()
    page.keyboard.press("d")
    page.wait_for_url(re.compile("diff=on"))
    page.keyboard.press("]")
    page.wait_for_url(re.compile(r"/groups/\?step=21&diff=on"))


def read_tokens(page: Page, run: Run) -> None:
    kept = GroupTokens.objects.filter(group__run=run).order_by("-group__step")
    group = kept.select_related("group")[0].group
    page.goto(
        f"/alpha/runs/{run.pk}/groups/{group.step}/{group.prompt_index}/"
        "?view=tokens&color=coefficient"
    )
    tokens = page.locator("#text-0 .token")
    expect(tokens.first).to_be_visible()
    tokens.first.hover()
    readout = page.locator("[data-token-readout]")
    for name in ("log-prob", "KL", "ratio", "entropy", "gradient coefficient"):
        expect(readout).to_contain_text(name)
    page.get_by_role("combobox", name="Colour").select_option("ratio")
    page.wait_for_url(re.compile("color=ratio"))


def mark(page: Page, run: Run) -> None:
    page.goto(f"/alpha/runs/{run.pk}/groups/?step=20")
    first = page.locator("[data-completion]").first
    first.hover()
    first.get_by_role("button", name="Good").click()
    expect(first.get_by_role("button", name="Good 1")).to_be_visible()


def find_completions(page: Page, run: Run) -> None:
    page.goto(f"/alpha/runs/{run.pk}/completions/")
    of_all = f"of {NUM_COMPLETIONS} completions"
    expect(page.get_by_text(of_all).first).to_be_visible()
    page.get_by_text("Steps ▾").click()
    page.get_by_label("From step").fill("11")
    page.get_by_label("Search completions").fill("a")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("text=a"))
    texts = page.locator(".found-text")
    expect(texts.first).to_contain_text("a")
    page.goto(f"/alpha/runs/{run.pk}/completions/?mark=good")
    expect(page.locator(".found")).to_have_count(1)
    page.goto(f"/alpha/runs/{run.pk}/completions/?rule=digits&min_score=1&sort=-length")
    matches = re.compile(rf"of [\d,]+ matches in {NUM_COMPLETIONS} completions")
    expect(page.get_by_text(matches).first).to_be_visible()


def follow_a_prompt(page: Page, run: Run) -> None:
    page.goto(f"/alpha/runs/{run.pk}/prompts/")
    page.locator(".prompt-link").first.click()
    page.wait_for_url(re.compile(r"/prompts/\d+/$"))
    expect(page.locator("[data-figure].js-plotly-plot")).to_have_count(2)
    expect(page.locator(".found").first).to_be_visible()


def rescore(page: Page, run: Run) -> None:
    page.goto(f"/alpha/rescorings/new?run={run.pk}")
    page.get_by_role("button", name="Rescore", exact=True).click()
    same = page.locator(".notice-success")
    expect(same).to_be_visible(timeout=120_000)
    expect(page.locator("[data-figure=means] .lines path")).to_have_count(2)


def audit(page: Page, run: Run) -> None:
    page.goto(f"/alpha/runs/{run.pk}/health/")
    expect(page.locator("[data-verdict]")).to_have_count(1)
    for signal in ("length", "entropy", "kl"):
        expect(page.locator(f"[id='{signal}-change']")).to_have_count(1)
    unchanged = page.locator("#unchanged:not([open]) > summary")
    if page.locator("#unchanged #entropy").count():
        unchanged.click()
    page.locator("#entropy > summary").click()
    expect(page.locator("[data-figure='entropy'] .lines path")).to_have_count(1)
    page.locator("#entropy").get_by_role("link", name="Read 10 before").click()
    expect(page.locator("#entropy .found")).to_have_count(20)


def compare_seeds(page: Page, runs: list[Run]) -> None:
    ids = ",".join(str(run.pk) for run in runs)
    page.goto(f"/alpha/compare?runs={ids}&metric=reward/mean")
    expect(page.locator(".run-chip")).to_have_count(2)
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    settings = page.get_by_role("heading", name=re.compile("settings differ"))
    expect(settings).to_be_visible()
    page.locator("#metric").get_by_label("X axis").select_option("tokens")
    page.wait_for_url(re.compile("x=tokens"))


def compare_a_prompt(page: Page, runs: list[Run]) -> None:
    page.goto(f"/alpha/compare/prompt?runs={runs[0].pk},{runs[2].pk}")
    page.get_by_role("link", name=re.compile("^Prompt ")).first.click()
    expect(page.get_by_role("region", name="B, completion 1")).to_be_visible()


def look_at_a_sweep(page: Page, runs: list[Run]) -> None:
    ids = ",".join(str(run.pk) for run in runs)
    page.goto(f"/alpha/sweep?runs={ids}")
    expect(page.locator('[data-figure="scatter"] .points path').first).to_be_visible()


def report(
    page: Page,
    open_browser: Callable[[User | None], BrowserContext],
    runs: list[Run],
) -> None:
    page.goto("/alpha/reports/new")
    page.get_by_label("Title").fill("Which rate?")
    text = page.get_by_label("Text, in Markdown")
    first, other = runs[0].pk, runs[2].pk
    text.fill(
        f"::chart runs={first},{other} metric=reward/mean\n\n"
        f"/alpha/compare?runs={first},{other}\n"
    )
    expect(page.get_by_role("region", name="Preview").locator("figure")).to_have_count(
        2
    )
    page.keyboard.press("Control+s")
    page.wait_for_url(re.compile(r"/alpha/reports/\d+/$"))
    page.get_by_text("Sharing: the team").click()
    page.get_by_role("button", name="Create public link").click()
    link = page.get_by_label("Public link").input_value()
    stranger = open_browser(None).new_page()
    stranger.goto(link)
    expect(stranger.locator("polyline").first).to_be_visible()
    page.get_by_text("Sharing: the team").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="HTML", exact=True).click()
    assert Path(download.value.path()).read_bytes().startswith(b"<!doctype html>")


def export(page: Page, run: Run) -> None:
    page.goto(f"/alpha/runs/{run.pk}/export/")
    page.get_by_label("Completions").check()
    expect(page.locator("[data-what=completions]")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    lines = Path(download.value.path()).read_text(encoding="utf-8-sig").splitlines()
    assert len(lines) >= NUM_COMPLETIONS + 1
