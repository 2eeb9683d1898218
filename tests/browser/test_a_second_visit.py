"""Browsers cache Cohort's scripts and stylesheets."""

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FETCHED = """performance.getEntriesByType("resource")
    .filter(({ name }) => new URL(name).pathname.startsWith("/static/"))
    .map(({ transferSize }) => transferSize)"""


def test_a_second_visit_downloads_no_static_file(page, team):
    page.goto(f"/{team.slug}/runs/", wait_until="networkidle")
    first = page.evaluate(FETCHED)
    page.goto("about:blank")
    page.goto(f"/{team.slug}/runs/", wait_until="networkidle")
    again = page.evaluate(FETCHED)

    assert len(first) >= 10
    assert all(first)
    assert len(again) >= 10
    assert not any(again)
