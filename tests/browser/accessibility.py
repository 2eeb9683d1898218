"""What keeps some people from using a page."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

AXE = Path(__file__).parents[2] / "node_modules/axe-core/axe.min.js"


def findings(page: Page) -> list[str]:
    """What axe finds, and whether the page itself scrolls sideways."""
    page.evaluate(AXE.read_text())
    violations = page.evaluate(
        "axe.run().then(r => r.violations.map(v => [v.id, v.nodes[0].html]))"
    )
    over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    wide = [f"{over} px too wide"] if over > 0 else []
    return [*map(str, violations), *wide]


def findings_in_each_view(page: Page) -> list[str]:
    """On a wide and on a narrow screen, in light and in dark colours."""
    found = []
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        for theme in ("light", "dark"):
            page.evaluate("t => document.documentElement.dataset.bsTheme = t", theme)
            page.wait_for_timeout(200)  # colours fade from one theme to the other
            where = f"{page.url} {width} {theme}"
            found += [f"{where}: {finding}" for finding in findings(page)]
    page.set_viewport_size({"width": 1440, "height": 900})
    return found
