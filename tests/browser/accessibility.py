"""Accessibility findings of a page."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

AXE = Path(__file__).parents[2] / "node_modules/axe-core/axe.min.js"
# Only violations are used, so axe skips other results and selectors.
FINDINGS = """axe
  .run({ resultTypes: ["violations"], selectors: false })
  .then((r) => r.violations.map((v) => [v.id, v.nodes[0].html]))"""
AT_REST = """Promise.allSettled(document.getAnimations()
  .filter((a) => a instanceof CSSTransition).map((a) => a.finished))"""


Look = Callable[[Page], list[str]]


def findings(page: Page) -> list[str]:
    """Violations found by axe, and horizontal scrolling of the page."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    violations = page.evaluate(FINDINGS)
    over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    wide = [f"{over} px too wide"] if over > 0 else []
    return [*map(str, violations), *wide]


def none(page: Page) -> list[str]:
    return []


def looking_with(find: Look) -> pytest.MarkDecorator:
    """A journey without checks, and as a slow test with checks of its pages."""
    checked = pytest.param(find, marks=pytest.mark.slow, id="accessible")
    return pytest.mark.parametrize("look", [pytest.param(none, id="journey"), checked])


def findings_in_each_view(page: Page) -> list[str]:
    """On a wide and on a narrow screen, in light and in dark colours."""
    found = []
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(200)  # Plotly redraws 100 ms after the last resize
        for theme in ("light", "dark"):
            page.evaluate("t => document.documentElement.dataset.bsTheme = t", theme)
            page.evaluate(AT_REST)  # until colour transitions end
            where = f"{page.url} {width} {theme}"
            found += [f"{where}: {finding}" for finding in findings(page)]
    page.set_viewport_size({"width": 1440, "height": 900})
    return found
