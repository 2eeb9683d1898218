"""An episode read in a browser: its turns, their tokens, and differences of turns."""

import re

import pytest
from playwright.sync_api import expect

from dashboard.completions.models import GroupTokens
from dashboard.completions.tokens import pack_tokens
from tests.dashboard.completions.episodes import episode, said
from tests.dashboard.completions.factories import make_run
from tests.dashboard.completions.test_turns import store
from tests.dashboard.supervision.logs import measured

pytestmark = pytest.mark.browser
LONG = "".join(f"line {i}\n" for i in range(9))
BEST = episode(
    said("So it is 20 or 21"), said(LONG, author="environment"), said("24"), reward=1.0
)
WORST = episode(
    said("So it is 20 or 22"),
    said("+", author="environment"),
    said("5"),
    said("-", author="environment"),
    reward=0.0,
)
PIECES = [*(f"{n} " for n in range(6)), "<end>", "+ ", "<end>", "5 ", "<end>", "-"]


@pytest.fixture
def group(team):
    return store(make_run(team), BEST, WORST)


def test_turns_unfold_and_compare(page, group):
    page.goto(f"/alpha/runs/{group.run_id}/groups/1/0/")
    first = page.locator("#completion-0")
    expect(first).to_contain_text("line 5")
    expect(first.locator(".turn-head").first).to_be_hidden()
    first.locator("button[data-toggle-row]").click()
    expect(first.locator(".turn-head").first).to_be_visible()
    rest = first.locator(".turn-fold")
    height = rest.bounding_box()["height"]
    rest.locator("summary").click()
    expect(rest).to_have_attribute("open", "")
    assert rest.bounding_box()["height"] > 2 * height
    expect(first).to_have_class(re.compile("is-open"))

    page.get_by_role("switch", name="Diff against best").click()

    turns = page.locator("#completion-1 [data-turn=policy]")
    expect(turns.first.locator("ins")).to_have_text("22")
    expect(turns.first.locator("del")).to_have_text("21")
    expect(turns.nth(1).locator("[data-diff-note]")).not_to_be_empty()
    expect(page.locator("#completion-1 [data-turn=environment] ins")).to_have_count(0)


def test_tokens_outside_the_loss_are_dimmed(page, group):
    tokens = [measured(*PIECES, advantage=[1.5] * len(PIECES))] * 2
    GroupTokens.objects.create(group=group, packed=pack_tokens(tokens))

    page.goto(f"/alpha/runs/{group.run_id}/groups/1/0/?view=tokens&color=advantage")

    tokens = page.locator("#text-1 .token")
    expect(tokens).to_have_count(12)
    expect(page.locator("#text-1 .token-author")).to_have_text(
        ["policy", "environment", "policy", "environment"]
    )
    expect(tokens.nth(7)).to_have_attribute("title", "not trained")
    expect(tokens.nth(7)).to_have_css("opacity", "0.45")
    expect(page.locator("#text-1 .token[data-level]")).to_have_count(9)
    expect(tokens.nth(9)).not_to_have_attribute("title", "not trained")
    # The engine sent all but the last one.
    expect(page.get_by_text("12 of 13 tokens")).to_be_visible()
    tokens.nth(7).hover()
    expect(page.locator("[data-token-readout]")).to_contain_text("not trained")
