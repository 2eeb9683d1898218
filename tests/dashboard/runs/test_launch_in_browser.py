import re

import pytest
from playwright.sync_api import Page, expect

from dashboard.runs.models import Run
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.runs.launching import (
    COUNTDOWN,
    NUMERIC,
    make_dataset,
    make_recipe,
)

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_the_estimate_updates_while_typing(page, team):
    make_dataset(team)
    make_recipe(team)
    page.goto("/alpha/runs/new")
    summary = page.locator("#launch-summary")

    page.get_by_label("Folder or Hugging Face ID").fill("org/model")
    page.get_by_role("textbox", name="Group size").fill("4")

    expect(summary).to_contain_text("16 prompts × 4")
    page.get_by_role("textbox", name="Group size").fill("0")
    expect(summary.locator(".launch-todo")).to_contain_text("at least 1")


def test_a_warning_is_confirmed_before_the_launch(page, team):
    make_dataset(team)
    recipe = make_recipe(team, "countdown", COUNTDOWN)
    page.goto(f"/alpha/runs/new?recipe={recipe.pk}")
    page.get_by_label("Folder or Hugging Face ID").fill("org/model")
    expect(page.locator(".launch-confirm")).to_be_visible()

    page.get_by_role("button", name="Launch").click()
    expect(page.locator(".launch-confirm .field-error")).to_be_visible()
    assert not Run.objects.exists()
    page.get_by_label("Launch anyway").check()
    page.get_by_role("button", name="Launch").click()

    expect(page).to_have_url(re.compile(r"/alpha/runs/\d+/$"))


def test_the_first_error_has_the_focus_after_submitting(page, team):
    make_dataset(team)
    make_recipe(team)
    page.goto("/alpha/runs/new")
    page.get_by_label("Folder or Hugging Face ID").fill("org/model")
    page.get_by_label("Learning rate", exact=True).fill("fast")

    page.get_by_role("button", name="Launch").click()

    expect(page.locator("[data-problems]")).to_be_focused()
    expect(page.get_by_label("Learning rate", exact=True)).to_have_value("fast")


def test_a_presets_reward_is_saved_and_chosen(page, team):
    make_dataset(team)
    page.goto("/alpha/runs/new?preset=trl")
    page.get_by_role("textbox", name="Name", exact=True).fill("brave-otter")

    page.get_by_role("button", name="Save as reward of Alpha").click()

    reward = page.get_by_label("Reward", exact=True).locator("option:checked")
    expect(reward).to_have_text("trl reward v1")
    expect(page.get_by_role("textbox", name="Name", exact=True)).to_have_value(
        "brave-otter"
    )
    expect(page.locator("[data-start-recipe]")).to_have_count(0)


def open_part(page: Page, setting: str) -> None:
    part = page.locator("details", has=page.locator(f"[data-setting='{setting}']"))
    part.locator("summary").click()


def test_marks_update_while_typing(page, team):
    page.goto("/alpha/runs/new?preset=trl")
    page.locator("[data-shows-unused]").check()
    length = page.locator("[data-setting='rollout.max_new_tokens']")
    horizon = page.locator("[data-setting='loss.kl_target'] [data-unused]")
    expect(length).to_contain_text("from trl, default 256")
    open_part(page, "loss.surrogate")
    expect(horizon).to_contain_text("KL weight")

    page.get_by_role("textbox", name="Max new tokens").fill("64")
    page.get_by_role("textbox", name="KL weight").fill("0.04")

    expect(length).to_contain_text("changed from trl: 512")
    expect(horizon).to_be_hidden()
    page.get_by_role("textbox", name="Clip high").fill("0.28")
    expect(page.get_by_text("1 changed")).to_be_visible()
    page.get_by_role("textbox", name="Max new tokens").fill("512")
    expect(length).to_contain_text("from trl, default 256")


def test_marks_follow_the_chosen_reward(page, team):
    rules = [*NUMERIC["rules"], *COUNTDOWN["rules"]]
    make_recipe(team, "plain", {"rules": rules})
    make_recipe(team, "joined", {"rules": rules, "combine": "normalize_then_sum"})
    page.goto("/alpha/runs/new")
    page.locator("[data-shows-unused]").check()
    combine = page.locator("[data-setting='advantage.combine'] [data-unused]")
    open_part(page, "advantage.combine")

    page.get_by_label("Reward", exact=True).select_option(label="joined v1")

    expect(combine).to_be_visible()
    page.get_by_label("Reward", exact=True).select_option(label="plain v1")
    expect(combine).to_be_hidden()


def test_marks_match_values_restored_by_the_browser(page, team):
    page.goto("/alpha/runs/new")
    clip = page.locator("[data-setting='loss.dual_clip'] [data-unused]")
    open_part(page, "loss.surrogate")
    page.get_by_label("Surrogate", exact=True).select_option("cispo")

    page.goto("/alpha/runs/")
    page.go_back()

    expect(page.locator("select[name='loss.surrogate']")).to_have_value("cispo")
    expect(clip).to_contain_text("surrogate")


def test_the_whole_form_is_accessible_on_any_screen(page, team):
    make_dataset(team)
    recipe = make_recipe(team)
    page.goto(f"/alpha/runs/new?preset=verl&model=org/model&recipe={recipe.pk}")

    assert_accessible(page)


def test_a_form_with_problems_is_accessible(page, team):
    page.goto("/alpha/runs/new")
    page.get_by_label("Learning rate", exact=True).fill("fast")
    page.get_by_role("button", name="Launch").click()
    expect(page.locator("[data-problems]")).to_be_focused()

    assert_accessible(page)


def test_the_toml_and_the_runs_to_launch_are_accessible(page, team):
    make_dataset(team)
    make_recipe(team)
    page.goto("/alpha/runs/new?model=org/model")
    page.get_by_text("Sweep", exact=True).click()
    page.get_by_label("Setting 1", exact=True).last.fill("seed")
    page.get_by_label("Values", exact=True).first.fill("0..2")
    plan = page.get_by_role("region", name="Runs to launch")
    expect(plan.get_by_role("row")).to_have_count(4)
    assert findings_in_each_view(page) == []

    page.get_by_role("button", name="TOML", exact=True).click()
    area = page.get_by_label("TOML", exact=True)
    expect(area).to_have_value(re.compile("group_size = 8"))
    area.fill(area.input_value().replace("group_size = 8", 'group_size = "big"'))
    page.get_by_role("button", name="Apply to the form").click()
    expect(page.locator("[data-toml-problems]")).to_contain_text("“big”")
    assert findings_in_each_view(page) == []


def assert_accessible(page: Page) -> None:
    """Unfolded, in each view."""
    page.evaluate(
        "document.querySelectorAll('main details').forEach(d => d.open = true)"
    )
    assert findings_in_each_view(page) == []


def test_held_out_prompts_follow_the_dataset_until_edited(page, team):
    large, small = make_dataset(team, "large"), make_dataset(team, "small", num_rows=53)
    page.goto(f"/alpha/runs/new?dataset={large.pk}")
    held_out = page.get_by_role("textbox", name="Held-out prompts")
    dataset = page.get_by_label("Dataset", exact=True)
    fit = page.locator("[data-fit]")
    open_part(page, "data.num_eval_rows")
    expect(held_out).to_have_value("64")
    expect(fit).to_have_count(0)

    dataset.select_option(str(small.pk))
    expect(held_out).to_have_value("10")
    expect(fit).to_contain_text("10 instead of 64")
    dataset.select_option(str(large.pk))
    expect(held_out).to_have_value("64")
    expect(fit).to_have_count(0)

    held_out.fill("7")
    dataset.select_option(str(small.pk))
    expect(fit).to_be_visible()
    expect(held_out).to_have_value("7")
