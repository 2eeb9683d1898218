"""What keeps some people from using a page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

AXE = Path(__file__).parents[2] / "node_modules/axe-core/axe.min.js"
# Only the findings are read, so axe works out nothing about the rest, and names no
# element by a selector.
FINDINGS = """axe
  .run({ resultTypes: ["violations"], selectors: false })
  .then((r) => r.violations.map((v) => [v.id, v.nodes[0].html]))"""
AT_REST = """Promise.allSettled(document.getAnimations()
  .filter((one) => one instanceof CSSTransition).map((one) => one.finished))"""


Look = Callable[[Page], list[str]]


def findings(page: Page) -> list[str]:
    """What axe finds, and whether the page itself scrolls sideways."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    violations = page.evaluate(FINDINGS)
    over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    wide = [f"{over} px too wide"] if over > 0 else []
    return [*map(str, violations), *wide]


def none(page: Page) -> list[str]:
    return []


def looking_with(find: Look) -> pytest.MarkDecorator:
    """A journey alone, and among the slow tests with a look at each of its pages."""
    with_look = pytest.param(find, marks=pytest.mark.slow, id="for everybody")
    return pytest.mark.parametrize("look", [pytest.param(none, id="alone"), with_look])


def findings_in_each_view(page: Page) -> list[str]:
    """On a wide and on a narrow screen, in light and in dark colours."""
    found = []
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(200)  # Plotly draws anew 100 ms after its last resize
        for theme in ("light", "dark"):
            page.evaluate("t => document.documentElement.dataset.bsTheme = t", theme)
            page.evaluate(AT_REST)  # colours may fade from one theme to the other
            where = f"{page.url} {width} {theme}"
            found += [f"{where}: {finding}" for finding in findings(page)]
    page.set_viewport_size({"width": 1440, "height": 900})
    return found
