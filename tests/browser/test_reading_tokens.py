"""A group read by its tokens: one value in colour, all of them in a line."""

import math
import re

import pytest
from playwright.sync_api import expect

from dashboard.completions.models import GroupTokens
from dashboard.completions.tokens import pack_tokens
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_group, make_run
from tests.dashboard.supervision.logs import measured

pytestmark = pytest.mark.browser


@pytest.fixture
def run(team) -> Run:
    run = make_run(team)
    group = make_group(
        run, step=3, prompt_index=4, texts=["3 + 4\n= 7", "none"], rewards=(1.2, 0.0)
    )
    first = measured(
        "3",
        " +",
        " 4\n",
        "= 7",
        "<eos>",
        logprob=[-0.1, -0.5, -4.0, -2.0, -0.01],
        ratio=[1.0, math.exp(0.2), 1.0, math.exp(-0.2), 1.0],
        clipped=[0, 1, 0, -1, 0],
        coefficient=[1.25, 0.0, 1.25, 0.6, -0.625],
    )
    second = measured("none", "<eos>", logprob=[-1.0, -0.1], ratio=[1.0, 1.0])
    GroupTokens.objects.create(group=group, packed=pack_tokens([first, second]))
    return run


def test_tokens_are_coloured_and_described(page, run):
    page.goto(f"/alpha/runs/{run.pk}/groups/3/4/")
    page.get_by_role("link", name="Tokens", exact=True).first.click()

    tokens = page.locator("#text-0 .token")
    expect(tokens).to_have_count(5)
    expect(tokens.nth(2)).to_have_attribute("data-level", "4")
    expect(tokens.nth(3)).to_have_attribute("data-level", "2")
    expect(tokens.nth(2)).to_have_text(" 4↵\n")
    expect(tokens.nth(4)).to_have_class(re.compile("is-special"))
    tokens.nth(2).hover()
    # The run sampled more tokens: 10 and 11.
    expect(page.get_by_text("5 of 10 tokens")).to_be_visible()
    readout = page.locator("[data-token-readout]")
    expect(readout).to_contain_text("Token 3 of 5 · id 102")
    expect(readout).to_contain_text("log-prob −4 nats (1.83%)")
    expect(readout).to_contain_text("gradient coefficient 1.25")
    expect(page).to_have_url(re.compile("view=tokens"))


@pytest.mark.slow
def test_arrow_keys_go_from_token_to_token(page, run):
    page.goto(f"/alpha/runs/{run.pk}/groups/3/4/?view=tokens&color=ratio")
    page.locator("#text-0 .token").first.wait_for()

    page.locator("#text-0").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")

    readout = page.locator("[data-token-readout]")
    expect(readout).to_contain_text("Token 2 of 5")
    expect(readout).to_contain_text("clipped above")
    expect(page.locator("#text-0 .token").nth(1)).to_have_attribute("data-level", "+4")
    expect(page.locator("#text-0 .token").nth(3)).to_have_attribute("data-level", "-4")


@pytest.mark.slow
def test_missing_token_values_are_reported(page, run):
    page.goto(f"/alpha/runs/{run.pk}/groups/3/4/?view=tokens")
    page.get_by_role("combobox", name="Colour").select_option("kl")

    expect(page.locator("[data-token-trouble]")).to_be_visible()
    expect(page.locator("#text-0 .token")).to_have_count(5)
    expect(page.locator(".completion-text [data-level]")).to_have_count(0)
