"""The help pages, and the tables in them that are generated from the code.

In a page, in Markdown, with what is between the marks written by `make docs`:

    <!-- table: presets -->
    <!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from glob import escape
from itertools import groupby

from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from dashboard.accounts.access import ASCENDING, RIGHTS
from dashboard.api.pages import ABOUT
from dashboard.api.problems import CODES
from dashboard.help.pages import (
    FOLDER,
    MAX_QUERY,
    all_pages,
    glossary,
    grouped_pages,
    parse_document,
    render_document,
    search,
)
from dashboard.project.environment import SETTINGS
from dashboard.project.errors import or_404
from dashboard.project.schema_forms import SchemaField
from dashboard.runs.config.fields import all_fields
from trainer.alerts.rules import RULES as ALERT_RULES
from trainer.alerts.rules import AlertRule
from trainer.metric_names import METRICS, Metric, find_metric, title_of
from trainer.presets.preset import load_preset, preset_names
from trainer.rewards.rules import RULES

BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


@login_not_required
@require_safe
def contents(request: HttpRequest) -> HttpResponse:
    query = request.GET.get("q", "").strip()[:MAX_QUERY]
    context = {"groups": grouped_pages(), "query": query, "found": search(query)}
    return render(request, "help/contents.html", context)


@login_not_required
@require_safe
def topic(request: HttpRequest, topic: str) -> HttpResponse:
    page = or_404(all_pages().get(topic), f"Help page {topic!r} not found.")
    return render(request, "help/topic.html", {"groups": grouped_pages(), "page": page})


# What ⓘ beside a metric, setting or term shows.


@dataclass(frozen=True, slots=True)
class Explanation:
    title: str
    name: str  # as programs write it; "" of a term
    text: SafeString
    facts: Sequence[tuple[str, str]]
    address: str  # where to read on


@lru_cache(maxsize=4_096)
def explain(term: str) -> tuple[Explanation, ...]:
    """Explain a metric, a family such as clip/frac_…, a setting or a term."""
    if metric := find_metric(term):
        return (_explain_metric(metric, term),)
    if "…" in term:
        return tuple(_explain_metric(metric, metric.name) for metric in _family(term))
    if setting := all_fields().get(term):
        return (_explain_setting(setting),)
    if entry := glossary().get(term.lower()):
        title, text = entry
        address = f"{reverse('help_topic', args=['glossary'])}#{title[0].lower()}"
        return (Explanation(title, "", text, (), address),)
    return ()


def _family(term: str) -> Iterator[Metric]:
    """`eval/math/…`: the metrics of each set."""
    pattern = escape(term).replace("…", "?*")
    _, _, rest = term.partition("eval/")
    for metric in (metric_ for group in METRICS.values() for metric_ in group):
        if fnmatchcase(metric.name.replace("<set>", rest.split("/")[0]), pattern):
            yield metric


def _explain_metric(metric: Metric, name: str) -> Explanation:
    text = render_document(parse_document(metric.about), folder=FOLDER)
    facts = [("Unit", metric.unit)]
    if metric.better:
        facts.append(("Better", metric.better))
    if metric.has_interval:
        facts.append(("Band", "95% interval"))
    group = next(title for title, group in METRICS.items() if metric in group)
    page = all_pages()["watch-a-run"]
    slug = next(
        (section.slug for section in page.sections if section.title == group), ""
    )
    address = f"{reverse('help_topic', args=[page.name])}#{slug}"
    return Explanation(title_of(name), name, text, facts, address)


def _explain_setting(setting: SchemaField) -> Explanation:
    facts = [("Default", setting.default_text or "none")]
    if setting.unit:
        facts.append(("Unit", setting.unit))
    if setting.choices:
        facts += [("Choice", label) for _, label in setting.options]
    text = format_html("<p>{}</p>", setting.help)
    address = reverse("help_topic", args=["launch"])
    return Explanation(setting.title, setting.path, text, facts, address)


@login_not_required
@require_safe
def about(request: HttpRequest, term: str) -> HttpResponse:
    """Explain a term on a page, or with ?part for the popover."""
    explanations = explain(term)
    if not explanations:
        raise Http404(f"Help has no entry {term!r}.")
    context = {
        "groups": grouped_pages(),
        "title": explanations[0].title,
        "found": explanations,
    }
    part = "explanation" if "part" in request.GET else "about"
    return render(request, f"help/{part}.html", context)


# Generated tables.


def fill_tables(text: str) -> str:
    """Fill a page with its current tables. KeyError: unknown page."""
    return BLOCK.sub(lambda at: f"{at[1]}\n{TABLES[at[2]]()}\n{at[3]}", text)


def _settings() -> str:
    head = ("Name", "Meaning", "Default")
    parts = (
        (group, _table(head, ((f"`{s.name}`", s.about, s.default) for s in settings)))
        for group, settings in groupby(SETTINGS, lambda setting: setting.group)
    )
    return _sections(parts, level=2)


def _metrics() -> str:
    head = ("Metric", "Name", "Meaning", "Unit")
    parts = ((group, _table(head, map(_metric, m))) for group, m in METRICS.items())
    return _sections(parts, level=3)


def _metric(metric: Metric) -> tuple[str, str, str, str]:
    interval = " `/low` and `/high`: its 95% interval." if metric.has_interval else ""
    title = metric.title.replace("<", "*").replace(">", "*")
    return title, f"`{metric.name}`", metric.about + interval, metric.unit


def _alert(rule: AlertRule) -> tuple[str, str]:
    name = rule.metric.replace("*", "<set>")
    return rule.name, rule.condition.describe(rule.metric).replace(name, f"`{name}`")


def _roles() -> str:
    head = ("", *(role.label for role in ASCENDING))
    rows = (
        (right.text, *("✓" if is_held else "–" for _, is_held in right.held))
        for right in RIGHTS
    )
    return _table(head, rows)


def _sections(parts: Iterable[tuple[str, str]], *, level: int) -> str:
    return "\n".join(f"{'#' * level} {title}\n\n{table}" for title, table in parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = ([cell.replace("|", r"\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


TABLES: dict[str, Callable[[], str]] = {
    "settings": _settings,
    "metrics": _metrics,
    "rules": lambda: _table(
        ("Rule", "Name in rewards", "Meaning"),
        ((rule.title, f"`{kind}`", rule.summary) for kind, rule in RULES.items()),
    ),
    "alerts": lambda: _table(("Rule", "Fires when"), map(_alert, ALERT_RULES)),
    "presets": lambda: _table(
        ("Preset", "System", "Settings"),
        (
            (f"`{preset.name}`", preset.title, preset.summary)
            for preset in map(load_preset, preset_names())
        ),
    ),
    "roles": _roles,
    "scopes": lambda: _table(
        ("Scope", "Allows"),
        ((f"`{scope.value}`", about) for scope, about in ABOUT.items()),
    ),
    "errors": lambda: _table(
        ("Status", "Code", "Meaning"),
        ((str(status), f"`{code}`", title) for status, (code, title) in CODES.items()),
    ),
}
