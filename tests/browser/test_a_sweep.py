"""A sweep in a browser: its axes are brushed, its points lead to runs."""

import re

import pytest
from playwright.sync_api import Page, expect

from dashboard.runs.models import Sweep
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.completions.factories import (
    make_config,
    make_dataset,
    make_recipe,
    make_run,
)

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def group(team) -> Sweep:
    group = Sweep.objects.create(team=team, name="rates")
    version, recipe = make_dataset(team), make_recipe(team)
    for place in range(12):
        rate, aggregation = 10.0 ** (place // 4 - 6), place // 2 % 2
        end = 0.2 + 0.2 * (place // 4) + 0.05 * aggregation + 0.01 * (place % 2)
        make_run(
            team,
            f"rates-{place + 1}",
            sweep=group,
            dataset_version=version,
            recipe_version=recipe,
            config=make_config(
                optim={"learning_rate": rate},
                loss={
                    "aggregation": ["token_mean", "constant"][aggregation],
                    "kl_coef": 0.1 * (place % 2),
                },
                seed=place,
            ),
            summary={"last": {"reward/mean": end}, "best": {}},
        )
    return group


def test_a_sweep_is_filtered_by_dragging_and_links_to_runs(page, group):
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"/alpha/sweep?sweep={group.pk}")
    plot = page.locator('[data-figure="parallel"]')
    expect(plot.locator(".scatterlayer .trace")).to_have_count(12)
    assert findings_in_each_view(page) == []

    brush(page, axis="outcome", low=0.6, high=1.1)

    page.wait_for_url(re.compile(r"keep=outcome"))
    expect(page.get_by_role("heading", name="4 of 12 runs")).to_be_visible()
    expect(page.locator("tr", has=page.locator("[data-run]"))).to_have_count(4)
    assert findings_in_each_view(page) == []

    page.get_by_role("link", name="Remove outcome from").click()
    expect(page.get_by_role("heading", name="12 runs,")).to_be_visible()

    page.locator("[name=x]").last.select_option("loss.aggregation")
    page.wait_for_url(re.compile("x=loss.aggregation"))
    scatter = page.locator('[data-figure="scatter"]')
    expect(scatter.locator(".points path").first).to_be_visible()
    scatter.scroll_into_view_if_needed()
    box = scatter.locator(".points path").first.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    expect(scatter.locator(".hovertext").first).to_be_visible()
    page.mouse.click(x, y)
    page.wait_for_url(re.compile(r"/alpha/runs/\d+/$"))
    assert errors == []


def brush(page: Page, *, axis: str, low: float, high: float) -> None:
    """Drags over a stretch of an axis, from 0 to 1, once it is as wide as its place."""
    plot = page.locator('[data-figure="parallel"]')
    page.wait_for_function(
        "plot => Math.round(plot._fullLayout.width) === plot.clientWidth",
        arg=plot.element_handle(),
    )
    ends = plot.evaluate(
        """(plot, [axis, low, high]) => {
            const { xaxis, yaxis, meta } = plot._fullLayout;
            const place = meta.axes.findIndex(({ key }) => key === axis);
            const { left, top } = plot.getBoundingClientRect();
            const x = left + xaxis._offset + xaxis.l2p(place);
            const y = (height) => top + yaxis._offset + yaxis.l2p(height);
            return [x, y(low), y(high)];
        }""",
        [axis, low, min(high, 1.05)],
    )
    x, bottom, top = ends
    page.mouse.move(x - 12, bottom)
    page.mouse.down()
    page.mouse.move(x, (bottom + top) / 2, steps=3)
    page.mouse.move(x + 12, top, steps=3)
    page.mouse.up()
