"""The help pages, and the tables in them that are generated from the code.

In a page, in Markdown, with what is between the marks written by `make docs`:

    <!-- table: presets -->
    <!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import ASCENDING, RIGHTS
from dashboard.api.pages import ABOUT
from dashboard.api.problems import CODES
from dashboard.help.pages import MAX_QUERY, all_pages, grouped_pages, search
from dashboard.project.environment import SETTINGS, Setting
from trainer.alert_rules import RULES as ALERT_RULES
from trainer.alert_rules import AlertRule
from trainer.metric_names import METRICS, Metric
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
    page = all_pages().get(topic)
    if page is None:
        raise Http404(f"Help page {topic!r} not found.")
    context = {"groups": grouped_pages(), "page": page}
    return render(request, "help/topic.html", context)


# Generated tables.


def fill_tables(text: str) -> str:
    """A page with its current tables. KeyError: unknown page."""
    return BLOCK.sub(lambda at: f"{at[1]}\n{TABLES[at[2]]()}\n{at[3]}", text)


def _settings() -> str:
    head = ("Name", "Meaning", "Default")
    parts = (
        (group, _table(head, map(_setting, settings)))
        for group, settings in groupby(SETTINGS, lambda one: one.group)
    )
    return _sections(parts, level=2)


def _setting(one: Setting) -> tuple[str, str, str]:
    return f"`{one.name}`", one.about, one.default


def _metrics() -> str:
    head = ("Metric", "Name", "Meaning", "Unit")
    parts = ((group, _table(head, map(_metric, m))) for group, m in METRICS.items())
    return _sections(parts, level=3)


def _metric(one: Metric) -> tuple[str, str, str, str]:
    interval = " `/low` and `/high`: its 95 % interval." if one.has_interval else ""
    title = one.title.replace("<", "*").replace(">", "*")
    return title, f"`{one.name}`", one.about + interval, one.unit


def _rules() -> str:
    return _table(
        ("Rule", "Name in rewards", "Meaning"),
        ((rule.title, f"`{kind}`", rule.summary) for kind, rule in RULES.items()),
    )


def _alerts() -> str:
    return _table(("Rule", "Fires when"), map(_alert, ALERT_RULES))


def _alert(rule: AlertRule) -> tuple[str, str]:
    name = rule.metric.replace("*", "<set>")
    return rule.name, rule.condition.describe(rule.metric).replace(name, f"`{name}`")


def _presets() -> str:
    presets = map(load_preset, preset_names())
    return _table(
        ("Preset", "System", "Settings"),
        ((f"`{one.name}`", one.title, one.summary) for one in presets),
    )


def _roles() -> str:
    head = ("", *(role.label for role in ASCENDING))
    rows = (
        (right.text, *("✓" if is_held else "–" for _, is_held in right.held))
        for right in RIGHTS
    )
    return _table(head, rows)


def _scopes() -> str:
    return _table(
        ("Scope", "Allows"),
        ((f"`{scope.value}`", about) for scope, about in ABOUT.items()),
    )


def _errors() -> str:
    return _table(
        ("Status", "Code", "Meaning"),
        ((str(status), f"`{code}`", title) for status, (code, title) in CODES.items()),
    )


def _sections(parts: Iterable[tuple[str, str]], *, level: int) -> str:
    return "\n".join(f"{'#' * level} {title}\n\n{table}" for title, table in parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


TABLES: dict[str, Callable[[], str]] = {
    "settings": _settings,
    "metrics": _metrics,
    "rules": _rules,
    "alerts": _alerts,
    "presets": _presets,
    "roles": _roles,
    "scopes": _scopes,
    "errors": _errors,
}
