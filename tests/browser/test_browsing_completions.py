"""Completions are narrowed down by what is counted of them, and looked through."""

import re

import pytest
from playwright.sync_api import expect

from dashboard.completions.models import Group, Tag
from dashboard.runs.models import Run
from tests.dashboard.completions.blocks import make_blocks
from tests.dashboard.completions.factories import make_group, make_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]
LONG = "First we add the two numbers, and then we look at what is left of them. " * 3


@pytest.fixture
def run(team, alice) -> Run:
    run = make_run(team)
    for step in range(1, 41):
        make_group(
            run,
            step=step,
            prompt_index=step % 7,
            rewards=(1.2, 0.2, 0.0, None),
            texts=[f"{LONG} So it is {step}.", f"{LONG} It is {step}.", "No.", ""],
            end_reasons=["stop", "stop", "length", "stop"],
        )
    make_blocks(run)
    group = Group.objects.filter(run=run).first()
    Tag.objects.create(group=group, position=0, user=alice, name="clever")
    return run


def test_a_facet_filters_to_its_count(page, run):
    page.goto(f"/alpha/runs/{run.pk}/completions/")

    page.get_by_role("link", name="no score 40").click()

    expect(page.get_by_text("40 matches in 160 completions")).to_have_count(1)
    chosen = page.get_by_role("link", name="no score 40")
    expect(chosen).to_have_attribute("aria-current", "true")

    chosen.click()
    expect(page.get_by_text("1–50 of 160")).to_have_count(2)


def test_words_are_searched_by_keyboard(page, run):
    page.goto(f"/alpha/runs/{run.pk}/completions/")

    page.get_by_label("Match").select_option("words")
    page.wait_for_url("**/completions/?match=words")
    page.keyboard.press("/")
    page.keyboard.type("numbers -so")
    page.keyboard.press("Enter")

    expect(page).to_have_url(re.compile(r"completions/\?text=[^&]+&match=words$"))
    expect(page.get_by_text("40 matches in 160 completions")).to_have_count(1)
    expect(page.locator(".found mark").first).to_have_text("numbers")
    page.keyboard.press("j")
    page.keyboard.press("c")
    expect(page.locator("[data-copy-status]")).not_to_be_empty()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/groups/39/4/#completion-1$"))
    expect(page.locator("#completion-1")).to_have_class(re.compile("is-linked"))


def test_the_worst_completion_of_a_step_is_found_by_chips(page, run):
    page.goto(f"/alpha/runs/{run.pk}/completions/")
    page.get_by_text("Steps ▾").click()
    page.get_by_label("From step").fill("40")
    page.get_by_label("To step").fill("40")
    page.keyboard.press("Enter")
    page.get_by_label("Order").select_option("reward")

    page.wait_for_url(re.compile(r"first_step=40&last_step=40"))
    expect(page.locator(".found-text").first).to_have_text("No.")
    page.get_by_role("link", name="Remove filter Steps").click()
    page.wait_for_url("**/completions/?sort=reward")
    page.goto(f"/alpha/runs/{run.pk}/groups/?step=40")
    page.get_by_role("link", name="Worst completions").click()
    expect(page.locator(".found-text").first).to_have_text("No.")
