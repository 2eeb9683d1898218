import re

import pytest
from playwright.sync_api import Page, expect

from dashboard.datasets.splits import split_version
from dashboard.runs.models import Run
from tests.dashboard.runs.launching import make_recipe
from tests.dashboard.runs.test_evaluation_sets import make_rows, make_version
from tests.dashboard.runs.test_launch_in_browser import assert_accessible

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def form(page, team, alice) -> Page:
    """With a split dataset chosen, and another that holds some of its rows."""
    make_version(team, "Mixed", [*make_rows(0, 30), *make_rows(9_000, 5)])
    split = split_version(
        make_version(team, "Sums", make_rows(0, 300)),
        rule={"by": "share", "share": 30.0, "seed": 0},
        train_name="Sums train",
        eval_name="Sums eval",
        user=alice,
    )
    make_recipe(team)
    assert split.train
    page.goto(f"/alpha/runs/new?dataset={split.train.pk}&model=org/model")
    return page


def test_the_other_half_of_a_split_is_added_by_keyboard(form):
    form.get_by_role("button", name="Evaluate on it").press("Enter")

    chosen = form.get_by_label("Dataset version")
    expect(chosen).to_be_focused()
    expect(chosen.locator("option:checked")).to_contain_text("Sums eval v1")
    expect(form.locator("#eval-notes-1")).to_contain_text("eval/sums_eval/…")
    expect(form.locator("#eval-notes-1")).to_contain_text("Sums eval v1")
    expect(form.locator("#eval-notes-1 .notice")).to_have_count(0)
    expect(form.get_by_role("button", name="Evaluate on it")).to_have_count(0)
    expect(form.locator("#launch-summary")).to_contain_text("2 sets")


def test_notes_update_without_interrupting_typing(form):
    form.get_by_role("button", name="Add evaluation set").click()
    form.get_by_label("Dataset version").select_option(label="Mixed v1, 35 rows")
    expect(form.locator("#eval-notes-1 .notice-warning")).to_contain_text("Sums train")

    form.get_by_label("Max rows").fill("7")
    form.get_by_label("Name in charts").press_sequentially("held_back", delay=20)

    expect(form.locator("#eval-notes-1")).to_contain_text("7 of 35 rows")
    expect(form.get_by_label("Name in charts")).to_have_value("held_back")
    expect(form.get_by_label("Name in charts")).to_be_focused()
    form.get_by_role("button", name="Launch").click()
    expect(form).to_have_url(re.compile(r"/alpha/runs/\d+/$"))
    assert Run.objects.get().evaluation_sets.get().name == "held_back"


def test_removing_a_set_moves_the_focus(form):
    form.get_by_role("button", name="Evaluate on it").click()

    form.get_by_role("button", name="Remove evaluation set 1").press("Enter")

    expect(form.get_by_role("button", name="Add evaluation set")).to_be_focused()
    expect(form.get_by_role("button", name="Evaluate on it")).to_be_visible()


def test_loading_other_settings_keeps_the_sets(form):
    form.get_by_role("button", name="Evaluate on it").click()
    form.get_by_label("Name in charts").fill("sums")

    form.get_by_label("Preset", exact=True).select_option("trl")

    expect(form.get_by_role("textbox", name="Max new tokens")).to_have_value("512")
    expect(form.get_by_label("Name in charts")).to_have_value("sums")


def test_the_sets_are_accessible_on_any_screen(form):
    form.get_by_role("button", name="Evaluate on it").click()
    expect(form.locator("#eval-notes-1")).to_contain_text("Sums eval v1")
    form.get_by_role("button", name="Add evaluation set").click()
    form.get_by_label("Dataset version").nth(1).select_option(label="Mixed v1, 35 rows")
    expect(form.locator("#eval-notes-2 .notice-warning")).to_be_visible()

    assert_accessible(form)
