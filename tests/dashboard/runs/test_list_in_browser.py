import re

import pytest
from playwright.sync_api import expect

from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_steps
from tests.dashboard.runs.launching import make_dataset, make_recipe, make_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def runs(team, alice) -> list[Run]:
    dataset, recipe = make_dataset(team), make_recipe(team)
    names = ("amber-otter", "brave-lynx", "calm-wren")
    return [
        make_run(team, name, dataset=dataset, recipe=recipe, owner=alice)
        for name in names
    ]


def test_selected_runs_are_compared_in_selection_order(page, runs):
    page.goto("/alpha/runs/")
    compare = page.get_by_role("button", name="Compare")
    expect(compare).to_be_hidden()

    page.get_by_label("Select amber-otter").check()
    expect(compare).to_be_disabled()
    page.get_by_label("Select calm-wren").check()
    compare.click()

    expect(page).to_have_url(f"/alpha/compare?runs={runs[0].pk},{runs[2].pk}")


def test_rows_update_live_and_keep_their_selection(page, runs):
    page.goto("/alpha/runs/")
    page.get_by_label("Select amber-otter").check()

    Run.objects.filter(pk=runs[0].pk).update(state="stopped", last_step=7)
    make_run(
        runs[0].team,
        "deft-heron",
        dataset=runs[0].dataset_version,
        recipe=runs[0].recipe_version,
    )

    row = page.locator(f"tr[data-run='{runs[0].pk}']")
    expect(row.locator(".state")).to_have_text("stopped", timeout=10_000)
    expect(row.get_by_text("7/100")).to_be_visible()
    expect(page.get_by_label("Select amber-otter")).to_be_checked()
    expect(page.locator(".list-line [data-news]")).to_be_visible()


def test_a_filter_applies_at_once_and_leaves_a_short_address(page, runs):
    page.goto("/alpha/runs/")

    page.get_by_text("Filter", exact=True).click()
    page.get_by_label("State").select_option("failed")

    expect(page).to_have_url("/alpha/runs/?state=failed")
    expect(page.get_by_text("No runs match")).to_be_visible()
    page.get_by_role("link", name="State: failed").click()
    expect(page).to_have_url("/alpha/runs/?view=")


def test_the_panel_of_curves_is_in_the_address_and_points_to_its_row(page, runs):
    for run in runs[:2]:
        make_steps(run, {"reward/mean": [0.1, 0.5, 0.7]})
        Run.objects.filter(pk=run.pk).update(last_step=3)
    page.goto("/alpha/runs/")
    page.get_by_text("View", exact=True).click()
    page.get_by_role("link", name="Show reward curves").click()
    expect(page).to_have_url("/alpha/runs/?curves=1")

    page.locator(f"tr[data-run='{runs[1].pk}']").hover()

    expect(page.locator("[data-curves] polyline")).to_have_count(2)
    line = page.locator(f"[data-curves] [data-run='{runs[1].pk}']")
    expect(line).to_have_class(re.compile("is-pointed"))


CUT = """[...document.querySelectorAll(".cell-fit > span, .cell-title a")]
  .filter((cell) => cell.scrollWidth > cell.clientWidth).length"""
OVER = """[...document.querySelectorAll(".table-scroll")]
  .map((table) => table.scrollWidth - table.clientWidth)[0]"""


def test_names_are_cut_only_where_the_table_lacks_room(page, team, alice):
    long = "first-of-the-runs-that-learn-to-add"
    label = "meta-llama/Llama-3.2-3B-Instruct"
    dataset = make_dataset(team, "Sums of three to four numbers, held out by target")
    run = make_run(
        team, long, dataset=dataset, recipe=make_recipe(team, long), owner=alice
    )
    Run.objects.filter(pk=run.pk).update(model_label=label, tags=["baseline"])
    page.set_viewport_size({"width": 1440, "height": 900})

    page.goto("/alpha/runs/?cols=state,model,dataset")
    assert (page.evaluate(CUT), page.evaluate(OVER)) == (0, 0)

    page.goto("/alpha/runs/?view=")
    assert page.evaluate(CUT) > 0
    assert page.evaluate(OVER) == 0
    page.get_by_label(f"Select {long}").focus()
    page.keyboard.press("Tab")
    assert (page.evaluate(CUT), page.evaluate(OVER)) == (0, 0)

    page.set_viewport_size({"width": 390, "height": 844})
    assert (page.evaluate(CUT), page.evaluate(OVER)) == (0, 0)


def test_slash_goes_to_the_search(page, runs):
    page.goto("/alpha/runs/")

    page.keyboard.press("/")

    expect(page.locator("#filter-q")).to_be_focused()
    expect(page.locator("#filter-q")).to_have_value("")
