"""Sets of seeds, and one prompt in two runs, as a reader compares them in a browser."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from dashboard.runs.models import Run
from tests.browser.waiting import wait_until
from tests.dashboard.analysis.compare.seeds import make_seeds
from tests.dashboard.completions.factories import make_group
from tests.fixtures_app import sign_in

pytestmark = [pytest.mark.browser, pytest.mark.slow]
PLOT = "document.querySelector('[data-curve-plot]')"
DIFFERENCES = "document.querySelector('[data-difference-plot]')"


@pytest.fixture
def base(team) -> list[Run]:
    return make_seeds(team, "base", 3, level=0.5, num_steps=60)


@pytest.fixture
def other(team, base) -> list[Run]:
    kl = {"kl_coef": 0.04}
    return make_seeds(team, "kl", 3, level=0.6, like=base[0], num_steps=60, loss=kl)


@pytest.fixture
def address(base, other) -> str:
    ids = ",".join(str(run.pk) for run in [*base, *other])
    return f"/alpha/compare?runs={ids}&metric=reward/mean"


@pytest.fixture
def four_each(team) -> str:
    """As many as a band needs."""
    base = make_seeds(team, "base", 4, level=0.5, num_steps=60)
    kl = {"kl_coef": 0.04}
    other = make_seeds(team, "kl", 4, level=0.6, like=base[0], num_steps=60, loss=kl)
    ids = ",".join(str(run.pk) for run in [*base, *other])
    return f"/alpha/compare?runs={ids}&metric=reward/mean"


@pytest.fixture
def answered(base, other) -> str:
    ours, theirs = base[0], other[0]
    for prompt in (4, 7):
        make_group(ours, step=5, prompt_index=prompt, texts=_texts("adds"))
        make_group(theirs, step=5, prompt_index=prompt, texts=_texts("guesses"))
    return f"runs={ours.pk},{theirs.pk}"


def _texts(verb: str) -> list[str]:
    return [f"First it {verb}, then it writes {i} as the answer." for i in range(4)]


def names(page: Page, plot: str) -> list[str]:
    found: list[str] = page.evaluate(f"{plot}.data.map((trace) => trace.name)")
    return found


def test_seeds_are_drawn_as_bands_and_ungrouped(page, four_each):
    page.goto(four_each)

    wait_until(page, f"{PLOT}.data?.length === 8")
    assert names(page, PLOT)[:4] == [
        "KL weight 0, 95% low",
        "KL weight 0, 95% high",
        "KL weight 0",
        "KL weight 0, n",
    ]
    page.get_by_label("Group by").select_option("none")
    page.wait_for_url(re.compile(r"by=none"))
    expect(page.locator(".run-chip")).to_have_count(8)
    wait_until(page, f"{PLOT}.data.some((trace) => trace.name === 'base-2')")


def test_the_numbers_follow_the_controls_and_the_address(page, address):
    page.goto(address)
    expect(page.get_by_role("columnheader", name="Mean of steps 37–40")).to_be_visible()

    page.get_by_label("Last steps").fill("10")
    expect(page.get_by_role("columnheader", name="Mean of steps 31–40")).to_be_visible()
    page.get_by_label("Bands").select_option("iqm")
    page.get_by_label("Pair equal seeds").check()
    expect(page.get_by_role("columnheader", name="Difference, paired")).to_be_visible()
    page.locator("#metric").get_by_label("X axis").select_option("tokens")
    wait_until(page, f"{PLOT}.layout.xaxis.title.text.includes('tokens')")
    wait_until(page, f"{DIFFERENCES}.layout.xaxis.title.text.includes('tokens')")

    expect(page).to_have_url(re.compile(r"window=10"))
    for part in ("stat=iqm", "paired=on", "x=tokens"):
        assert part in page.url
    assert "better=" not in page.url  # the metric's own direction goes without saying
    page.reload()
    expect(page.get_by_role("columnheader", name="Mean of steps 31–40")).to_be_visible()
    expect(page.get_by_label("Pair equal seeds")).to_be_checked()


def test_a_chosen_direction_turns_what_is_better(page, address):
    page.goto(address)
    better = page.locator("[data-contrasts] [data-direction=better]")
    expect(better.first).to_be_visible()

    page.get_by_label("Direction").select_option("lower")

    worse = page.locator("[data-contrasts] [data-direction=worse]")
    expect(worse.first).to_be_visible()
    expect(page).to_have_url(re.compile(r"better=lower"))


def test_the_run_ticked_first_is_the_baseline_and_the_prompt_typed_is_kept(
    page, base, answered
):
    page.goto("/alpha/runs/")
    page.get_by_label("Select base-0").check()
    page.get_by_label("Select kl-0").check()
    page.get_by_label("Select base-0").uncheck()
    page.get_by_label("Select base-0").check()
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.locator(".run-chip.is-baseline")).to_contain_text("kl-0")

    page.get_by_label("Prompt number").fill("7")
    page.get_by_role("button", name="Compare two runs").click()

    expect(page.get_by_role("heading", name="Prompt 7 at step 5")).to_be_visible()
    expect(page.locator("select[name=b]")).to_have_value(str(base[0].pk))


def test_a_band_is_saved_with_its_interval_and_its_counts(page, four_each):
    page.goto(four_each)
    wait_until(page, f"{PLOT}.data?.length === 8")

    with page.expect_download() as caught:
        page.get_by_role("button", name="Save the curves as CSV").click()

    path = caught.value.path()
    head, first = Path(path).read_text().splitlines()[:2]
    assert head.startswith(
        'step,"KL weight 0, 95% low","KL weight 0, 95% high",KL weight 0,'
    )
    low, high, mean, num = map(float, first.split(",")[1:5])
    assert low < mean < high
    assert num == 4


def test_completions_of_two_runs_show_what_differs(page, answered):
    page.goto(f"/alpha/compare/prompt?{answered}&prompt=7")

    theirs = page.get_by_role("region", name="B, completion 1")
    expect(theirs.locator("ins")).to_have_text("guesses")
    expect(theirs.locator("del")).to_have_text("adds")
    page.get_by_label("B's text").select_option("plain")
    page.wait_for_url(re.compile(r"text=plain"))
    expect(theirs).to_have_text("First it guesses, then it writes 0 as the answer.")
    expect(theirs.locator("ins")).to_have_count(0)


def test_prompts_lead_to_their_completions(page, answered):
    page.goto(f"/alpha/compare/prompt?{answered}")

    page.get_by_role("link", name="Win rate of A").click()
    page.wait_for_url(re.compile(r"sort=-rate"))
    page.get_by_role("link", name="Prompt 4").click()

    expect(page.get_by_role("heading", name="Prompt 4 at step 5")).to_be_visible()


def test_without_script_a_form_sends_the_same_query(
    base, address, alice, browser, live_app
):
    context = browser.new_context(base_url=live_app, java_script_enabled=False)
    sign_in(context, alice, live_app)
    page = context.new_page()
    page.goto(address)

    page.get_by_label("Last steps").fill("10")
    values = page.locator(".metric-values")
    values.get_by_role("button", name="Show", exact=True).click()

    expect(page.get_by_role("columnheader", name="Mean of steps 31–40")).to_be_visible()
    context.close()
