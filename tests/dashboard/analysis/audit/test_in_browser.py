"""An audit, from its row to completions of both sides, in a real browser."""

import re

import pytest
from playwright.sync_api import expect

from dashboard.accounts.models import Team
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_group, make_run, make_steps

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def make_audited(team: Team) -> Run:
    run = make_run(team, "clever-otter-1", num_steps=30)
    lengths = [100.0 + 50 * (s > 15) + 3 * (s % 3) for s in range(1, 31)]
    make_steps(run, {"completion/mean_length": list(lengths)})
    for step in range(1, 31):
        opening = "Surely the answer is right. " if step > 15 else ""
        texts = [f"{opening}{step} and {n} make {step + n}" for n in range(4)]
        make_group(run, step, 0, texts=texts)
        make_group(run, step, 1, texts=texts)
    return run


def test_from_a_row_to_completions_of_both_sides(page, team):
    run = make_audited(team)
    page.goto(f"/alpha/runs/{run.pk}/")
    page.get_by_role("navigation", name="Run").get_by_role(
        "link", name="Health"
    ).click()
    page.locator("#length > summary").click()
    expect(page).to_have_url(re.compile("#length$"))
    chart = page.locator("[data-figure=length]")
    expect(chart.locator(".lines path")).to_have_count(1)
    expect(chart.locator(".shapelayer path")).to_have_count(2)

    read = page.locator("#length").get_by_role("link", name="Read 10 before")
    read.click()

    expect(page.get_by_role("heading", name="Before: steps 1–7")).to_be_visible()
    expect(page.locator("#length .found")).to_have_count(20)
    page.reload()
    expect(page.locator("#length-change")).to_be_visible()


def test_a_point_opens_the_groups_of_its_step(page, team):
    run = make_audited(team)
    page.goto(f"/alpha/runs/{run.pk}/health/#length")
    point = page.locator("[data-figure=length] .points path").nth(4)
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    assert box is not None

    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator("[data-figure=length] .hoverlayer .legend")).to_be_visible()
    page.mouse.down()
    page.mouse.up()

    expect(page).to_have_url(re.compile(rf"/runs/{run.pk}/groups/\?step=5$"))
