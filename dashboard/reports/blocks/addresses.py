"""A pasted address of one of the team's own pages becomes a block."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from django.http import Http404, QueryDict
from django.urls import Resolver404, resolve

from dashboard.accounts.models import Team
from dashboard.insights.forms import CompareForm
from dashboard.insights.metrics import list_metrics
from dashboard.insights.selection import join_ids, read_selection
from dashboard.reports.block_lines import Block, read_lines
from dashboard.reports.blocks.options import MAX_RUNS
from dashboard.runs.charts.chart import Chart, chart_id
from dashboard.runs.charts.figures import sections_of
from dashboard.runs.models import REWARD, Run
from dashboard.samples.forms import GroupViewForm

ADDRESS = re.compile(r"^\s*<?((?:https?://|/)[^\s<>]{1,2000})>?\s*$")


def translate_addresses(text: str, team: Team, hosts: Collection[str]) -> str:
    """Lines that are nothing but such an address, of one of these hosts or of none."""
    return "\n".join(
        line if is_code else _translate(line, team, hosts)
        for line, is_code in read_lines(text)
    )


def _translate(line: str, team: Team, hosts: Collection[str]) -> str:
    found = ADDRESS.match(line)
    if found is None:
        return line
    try:
        address = urlsplit(found[1])
        if address.netloc and address.netloc not in hosts:
            return line
        match = resolve(address.path)
    except (Resolver404, ValueError):
        return line
    make = PAGES.get(match.url_name or "")
    if make is None or match.kwargs.get("team") != team.slug:
        return line
    return make(team, match.kwargs, address) or line


def _group(team: Team, at: dict[str, Any], address: SplitResult) -> str:
    options = {"run": at["run_id"], "step": at["step"], "prompt": at["prompt"]}
    form = GroupViewForm.read(QueryDict(address.query))
    sort = form.value("sort")
    if "sort=" in address.query:
        options["sort"] = sort
    return Block(kind="group", options={k: str(v) for k, v in options.items()}).line


def _comparison(team: Team, at: dict[str, Any], address: SplitResult) -> str:
    """What is more than a block shows is said under it."""
    query = QueryDict(address.query)
    try:
        selection = read_selection(team, query)
    except Http404:
        return ""
    if not selection.ids:
        return ""
    form = CompareForm.read(query)
    options = {
        "runs": join_ids(selection.ids[:MAX_RUNS]),
        "metric": form.value("metric"),
    }
    for name in ("x", "smooth", "y"):
        if name in query:
            options[name] = str(form.value(name))
    line = Block(kind="compare", options=options).line
    if selection.num_chosen <= MAX_RUNS:
        return line
    return f"{line}\n*{MAX_RUNS} of {selection.num_chosen} runs are in this block.*"


def _run_chart(team: Team, at: dict[str, Any], address: SplitResult) -> str:
    """The chart that the address names after its #, or the reward's; a block a metric.

    Empty where the run has no such chart.
    """
    run = Run.objects.kept().filter(team=team, pk=at["run_id"]).first()
    if run is None:
        return ""
    named = unquote(address.fragment).removeprefix("chart-")
    options = [
        {"runs": str(run.pk), "metric": metric} for metric in _metrics_of(run, named)
    ]
    return "\n".join(Block(kind="chart", options=each).line for each in options)


def _metrics_of(run: Run, named: str) -> list[str]:
    if not named:
        return [REWARD]
    measured = [name for _, names in list_metrics([run]) for name in names]
    alone = [name for name in measured if chart_id(name) == named]
    if alone:
        return alone[:1]
    charts = [chart for chart in _charts_of(run) if chart.id == named]
    metas = [trace["meta"] for chart in charts for trace in chart.figure["data"]]
    return [name for name in measured if any(_draws(meta, name) for meta in metas)]


def _charts_of(run: Run) -> list[Chart]:
    try:
        sections = sections_of(run)
    except ValueError:
        return []  # an older run's, of which some setting is no longer known
    return [chart for section in sections for chart in section.charts]


def _draws(meta: dict[str, Any], name: str) -> bool:
    if "each" in meta:
        return re.search(meta["each"], name) is not None
    return any(term[0] == name for term in meta.get("terms", []))


PAGES: dict[str, Callable[[Team, dict[str, Any], SplitResult], str]] = {
    "group": _group,
    "compare": _comparison,
    "run": _run_chart,
    "run_metrics": _run_chart,
}
