"""The stylesheet of a report that stands alone: the page's own, and its colours."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache

from dashboard.project.environment import ROOT

STYLES = ROOT / "static" / "css"
DARK = re.compile(r'\[data-bs-theme="dark"\] \{(.*?)\n\}', re.DOTALL)
COLOUR = re.compile(r"--cohort-([\w-]+): (#[0-9a-f]{3,6});")


@cache
def alone() -> str:
    """What a reader's system says of light and dark decides, as there is no script."""
    colors = (STYLES / "colors.css").read_text("utf-8")
    dark = DARK.search(colors)
    assert dark, "colors.css has no dark colours"
    light = colors[: dark.start()]
    in_the_dark = f"@media (prefers-color-scheme: dark) {{\n:root {{{dark[1]}\n}}\n}}\n"
    rest = [
        (STYLES / "pages" / name).read_text("utf-8")
        for name in ("report_blocks.css", "report_alone.css")
    ]
    return "\n".join([light, in_the_dark, *rest])


@cache
def policy() -> str:
    """Nothing is loaded, run or sent: only this very stylesheet counts."""
    sha256 = hashlib.sha256(alone().encode()).digest()
    known = base64.b64encode(sha256).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{known}'; base-uri 'none'; "
        "form-action 'none'"
    )
