"""A report's text as HTML, and a report as a self-contained page without scripts."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection, Sequence
from functools import cache, lru_cache
from urllib.parse import urlsplit

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from markdown_it.token import Token

from dashboard.analysis.reports.document import show_report
from dashboard.analysis.reports.models import Report
from dashboard.analysis.reports.services import own_hosts
from dashboard.completions.rendering import make_markdown
from dashboard.project.environment import ROOT

STYLES = ROOT / "static" / "css"
DARK = re.compile(r'\[data-bs-theme="dark"\] \{(.*?)\n\}', re.DOTALL)


def render_prose(text: str, *, without_hosts: Collection[str] = ()) -> SafeString:
    """Links to these hosts become their text: who reads it could not follow them."""
    made = _markdown()
    tokens = made.parse(text)
    for token in tokens:
        if token.children:
            token.children = list(_without_links(token.children, without_hosts))
    html: str = made.renderer.render(tokens, made.options, {})
    return SafeString(html)  # nosec B703 # the renderer escapes; see samples.rendering


@lru_cache(maxsize=1)
def _markdown() -> MarkdownIt:
    made = make_markdown()
    made.add_render_rule(
        "heading_open", lambda _, tokens, at, *__: f"<h{heading_level(tokens[at])}>"
    )
    made.add_render_rule(
        "heading_close",
        lambda _, tokens, at, *__: f"</h{heading_level(tokens[at])}>\n",
    )
    return made


def heading_level(token: Token) -> int:
    """Return the author's level, but for the first: the page's heading is its title."""
    return max(int(token.tag[1]), 2)


def _without_links(tokens: Sequence[Token], hosts: Collection[str]) -> list[Token]:
    tokens_kept, is_left_out = [], False
    for token in tokens:
        if token.type == "link_open":
            is_left_out = urlsplit(str(token.attrGet("href"))).netloc in hosts
        if token.type in ("link_open", "link_close") and is_left_out:
            continue
        tokens_kept.append(token)
    return tokens_kept


# A self-contained page: no script, no request, no link into the team.


@cache
def standalone_css() -> str:
    """Follows the system's light or dark theme, as there is no script."""
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
    """Allow to load, run or send nothing: only this very stylesheet counts."""
    digest = base64.b64encode(
        hashlib.sha256(standalone_css().encode()).digest()
    ).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'"
    )


def render_standalone(report: Report, *, without_hosts: Collection[str]) -> str:
    context = {
        "report": report,
        "parts": show_report(report),
        "style": mark_safe(standalone_css()),  # nosec B308, B703 # noqa: S308 - our own files
        "policy": policy(),
        "without_hosts": without_hosts,
        "now": timezone.now(),
    }
    return render_to_string("reports/standalone.html", context)


def html_of(request: HttpRequest, report: Report) -> HttpResponse:
    """Render one page that needs nothing else."""
    response = HttpResponse(
        render_standalone(report, without_hosts=own_hosts(request)).encode(),
        content_type="text/html; charset=utf-8",
    )
    words = re.sub(r"[^a-z0-9]+", "-", report.title.lower()).strip("-")
    name = words[:60] or f"report-{report.pk}"
    response["Content-Disposition"] = f'attachment; filename="{name}.html"'
    # It is a file to keep, and acts as no page of ours where a browser shows it.
    response["Content-Security-Policy"] = "sandbox; default-src 'none'"
    return response
