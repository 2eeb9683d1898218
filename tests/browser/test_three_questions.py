"""Three questions of a researcher who opens Cohort, each answered in a few clicks."""

import random

import pytest
from playwright.sync_api import Locator, Page, expect

from dashboard.runs.models import Run
from tests.browser.accessibility import findings_in_each_view
from tests.browser.waiting import wait_until
from tests.dashboard.analysis.compare.seeds import make_seeds
from tests.dashboard.completions.factories import (
    make_config,
    make_evaluation,
    make_group,
    make_run,
    make_steps,
)
from tests.dashboard.completions.rollups import WEIGHTED, make_rollup
from tests.dashboard.completions.step_groups import make_group as make_step_group

pytestmark = [pytest.mark.browser, pytest.mark.slow]
NUM_STEPS, JUMP, ASKED = 80, 51, 40
WORST = -0.4
REWARD = "document.querySelector('[data-chart=\"reward-mean\"]')"
AT_STEP = """([step]) => {
  const plot = document.querySelector('[data-chart="reward-mean"]');
  const {left, top, width, height} =
    plot.querySelector(".nsewdrag").getBoundingClientRect();
  const [from, to] = plot._fullLayout.xaxis.range;
  return [left + width * (step - from) / (to - from), top + height / 2];
}"""


class Visitor:
    """Counts the clicks on a page."""

    def __init__(self, page: Page, *, is_wide: bool) -> None:
        self.page = page
        self.is_wide = is_wide
        self.num_clicks = 0

    def click(self, target: Locator) -> None:
        target.click()
        self.num_clicks += 1

    def click_point(self, step: int) -> None:
        """Of the reward's chart, which is drawn once it is on the screen."""
        self.page.locator("[data-chart=reward-mean]").scroll_into_view_if_needed()
        wait_until(self.page, f"{REWARD}.data?.length > 0")
        x, y = self.page.evaluate(AT_STEP, [step])
        self.page.mouse.move(x - 2, y)
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        self.page.mouse.up()
        self.num_clicks += 1


@pytest.fixture(params=[(1440, 900), (390, 844)], ids=["wide", "narrow"])
def visitor(page, request) -> Visitor:
    width, height = request.param
    page.set_viewport_size({"width": width, "height": height})
    return Visitor(page, is_wide=width > 1_000)


@pytest.fixture
def run(team) -> Run:
    """Its format is learned at step 51, at which a phase lowers the temperature."""
    phases = [
        {"name": "explore", "num_steps": JUMP - 1},
        {
            "name": "sharpen",
            "num_steps": NUM_STEPS - JUMP + 1,
            "changes": {"rollout": {"temperature": 0.6}},
        },
    ]
    config = make_config(phases=phases, optim={"num_steps": NUM_STEPS})
    run = make_run(team, "jumping-hare", num_steps=NUM_STEPS, config=config)
    chance = random.Random(5)
    form = [0.05 if step < JUMP else 0.95 for step in range(1, NUM_STEPS + 1)]
    make_steps(
        run,
        {
            "reward/mean": [0.5 + 0.2 * f + chance.gauss(0, 0.004) for f in form],
            "reward/answer/mean": [0.5] * NUM_STEPS,
            "reward/format/mean": list(form),
            "completion/mean_length": [30.0 + 60 * (f > 0.5) for f in form],
        },
    )
    for step, score in enumerate(form, 1):
        rules: list[dict[str, float | None]] = [{"answer": 0.5, "format": score}]
        group = make_step_group([0.5 + 0.2 * score], rules=rules)
        make_rollup(run, step, [group], composition=WEIGHTED)
    for step in (ASKED, JUMP - 1, JUMP):
        make_group(run, step, 1, rewards=(1.2, 0.2, 0.0, 0.0))
        lowest = WORST if step == ASKED else 0.2
        make_group(run, step, 2, rewards=(0.4, 0.3, 0.2, lowest))
    for step, mean in ((ASKED, 0.5), (60, 0.7)):
        evaluate(run, step, mean)
    return run


def evaluate(run: Run, step: int, mean: float) -> None:
    metric = "eval/heldout/mean"
    make_evaluation(
        run,
        step,
        {
            metric: mean,
            f"{metric}/low": mean - 0.05,
            f"{metric}/high": mean + 0.05,
        },
    )


def test_the_worst_completion_of_a_step(visitor, run):
    page = visitor.page
    page.goto("/alpha/runs/")

    visitor.click(page.get_by_role("link", name=run.name, exact=True))
    visitor.click_point(ASKED)
    expect(page.locator("[data-sample-step]")).to_have_text(str(ASKED))
    visitor.click(page.locator("[data-sample-worst]"))

    first = page.locator(".found").first
    expect(first).to_contain_text(str(WORST))
    visitor.click(first.get_by_role("link").first)
    expect(page.locator("#completion-3")).to_contain_text("completion 3")
    assert visitor.num_clicks <= 4


def test_which_of_two_runs_is_better(visitor, team):
    base, *_ = make_seeds(team, "slow", 1, num_steps=60)
    rates = {"learning_rate": 3e-6}
    other, *_ = make_seeds(team, "fast", 1, like=base, num_steps=60, optim=rates)
    evaluate(base, 60, 0.5)
    evaluate(other, 60, 0.7)
    page = visitor.page
    page.goto("/alpha/runs/")

    for one in (base, other):
        visitor.click(row_of(page, one).get_by_role("checkbox"))
    visitor.click(page.get_by_role("button", name="Compare", exact=True))

    answer = page.locator("[data-answer]")
    expect(answer).to_have_attribute("data-answer", "one")
    expect(answer).to_contain_text("0.2")
    assert visitor.num_clicks <= 3


def row_of(page: Page, run: Run) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_text(run.name, exact=True))


def test_which_of_two_settings_is_better_over_seeds(visitor, team):
    base = make_seeds(team, "kl-off", 5, level=0.4, num_steps=60)
    kl = {"kl_coef": 0.05}
    make_seeds(team, "kl-on", 5, level=0.9, like=base[0], num_steps=60, loss=kl)
    page = visitor.page
    page.goto("/alpha/runs/?q=kl-")

    everything = page.locator("[data-tick-all]").filter(visible=True)
    if everything.count() == 0:
        visitor.click(page.get_by_role("checkbox", name="Select kl-on-0"))
    visitor.click(everything)
    visitor.click(page.get_by_role("button", name="Compare", exact=True))

    answer = page.locator("[data-answer]")
    expect(answer).to_have_attribute("data-answer", "worse")
    expect(answer).to_contain_text("KL weight 0.05")
    expect(answer).to_contain_text("5 seeds each")
    assert visitor.num_clicks <= (2 if visitor.is_wide else 3)


def test_why_the_reward_jumped(visitor, run):
    page = visitor.page
    page.goto("/alpha/runs/")

    visitor.click(page.get_by_role("link", name=run.name, exact=True))
    jump = page.locator(f"[data-jump='{JUMP}']")
    expect(jump.locator("[data-cause]")).to_have_attribute("data-cause", "format")
    expect(jump.locator("[data-setting-changed]")).to_contain_text("1 → 0.6")
    expect(jump.locator("[data-jumping]")).to_contain_text("30 → 90")
    assert visitor.num_clicks == 1
    page.locator("[data-chart=reward-mean]").scroll_into_view_if_needed()
    wait_until(page, f"{REWARD}.layout?.annotations?.some((a) => a.text === '↑')")

    visitor.click(jump.locator("[data-sample-at]"))
    around = page.locator(f"[data-around='{JUMP}']")
    expect(around).to_be_in_viewport()
    part = around.locator("[data-around-rule=format] [data-around-part]")
    expect(part).to_have_text("+0.18")
    expect(around.locator("[data-moment]")).to_contain_text(str(JUMP))
    held_out = around.locator("[data-around-row='eval/heldout/mean']")
    expect(held_out).to_contain_text("0.7")
    assert findings_in_each_view(page) == []

    visitor.click(around.locator("[data-around-read]"))
    expect(page.locator(".check-sides > section")).to_have_count(2)
    expect(page.locator(".check-sides .found")).to_have_count(16)
    assert visitor.num_clicks == 3
    assert findings_in_each_view(page) == []


def test_a_point_of_the_chart_leads_to_the_same_answer(visitor, run):
    page = visitor.page
    page.goto(f"/alpha/runs/{run.pk}/")

    visitor.click_point(JUMP)

    expect(page.locator(f"[data-around='{JUMP}']")).to_be_in_viewport()
    assert f"step={JUMP}" in page.url
    page.reload()
    expect(page.locator(f"[data-around='{JUMP}']")).to_be_attached()
