"""Blocks made of a pasted address of the team's pages, or of what a form chooses."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from django.http import Http404, QueryDict
from django.urls import Resolver404, resolve

from dashboard.accounts.models import Team
from dashboard.analysis.compare.selection import (
    CompareForm,
    Selection,
    join_ids,
    offer_runs,
    read_selection,
)
from dashboard.analysis.compare.series import list_metrics
from dashboard.analysis.reports.block_options import (
    MAX_RUNS,
    Block,
    InsertForm,
    read_lines,
)
from dashboard.completions.forms import GroupViewForm
from dashboard.completions.models import Group
from dashboard.completions.sparklines import signal_words
from dashboard.project.database import read_whole
from dashboard.runs.charts.chart import Chart, chart_id
from dashboard.runs.charts.figures import (
    combined_charts,
    features_of_run,
    overview_charts,
)
from dashboard.runs.models import REWARD, Run

ADDRESS = re.compile(r"^\s*<?((?:https?://|/)[^\s<>]{1,2000})>?\s*$")
MAX_GROUPS = 24
TITLES = {
    "chart": "Chart",
    "group": "Group",
    "compare": "Comparison",
    "table": "Table of metrics",
    "mismatch": "Sampler mismatch",
}
OF_ONE_RUN = ("group", "mismatch")


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
    sort = GroupViewForm.read(QueryDict(address.query)).value("sort")
    if "sort=" in address.query:
        options["sort"] = sort
    return Block(kind="group", options={k: str(v) for k, v in options.items()}).line


def _comparison(team: Team, at: dict[str, Any], address: SplitResult) -> str:
    """Add a note below the block that counts the runs beyond its limit."""
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
    return f"{line}\n*{MAX_RUNS} of {selection.num_chosen} runs are shown.*"


def _mismatch(team: Team, at: dict[str, Any], address: SplitResult) -> str:
    step = QueryDict(address.query).get("step", "")
    options = {"run": str(at["run_id"])} | ({"step": step} if step.isdecimal() else {})
    return Block(kind="mismatch", options=options).line


def _run_chart(team: Team, at: dict[str, Any], address: SplitResult) -> str:
    """Write the chart that the address names after its #, or the reward's; a block a
    metric.

    Empty where the run has no such chart.
    """
    run = Run.objects.kept().filter(team=team, pk=at["run_id"]).first()
    if run is None:
        return ""
    named = unquote(address.fragment).removeprefix("chart-")
    options = [
        {"runs": str(run.pk), "metric": metric} for metric in _metrics_of(run, named)
    ]
    return "\n".join(Block(kind="chart", options=option).line for option in options)


def _metrics_of(run: Run, named: str) -> list[str]:
    if not named:
        return [REWARD]
    measured = [name for _, names in list_metrics([run]) for name in names]
    charted = [name for name in measured if chart_id(name) == named]
    if charted:
        return charted[:1]
    charts = [chart for chart in _charts_of(run) if chart.id == named]
    metas = [trace["meta"] for chart in charts for trace in chart.figure["data"]]
    return [name for name in measured if any(_draws(meta, name) for meta in metas)]


def _charts_of(run: Run) -> list[Chart]:
    try:
        features = features_of_run(run)
    except ValueError:
        return []  # an older run with an unknown setting
    return [*overview_charts(features), *combined_charts(features)]


def _draws(meta: dict[str, Any], name: str) -> bool:
    if "each" in meta:
        return re.search(meta["each"], name) is not None
    return any(term[0] == name for term in meta.get("terms", []))


PAGES: dict[str, Callable[[Team, dict[str, Any], SplitResult], str]] = {
    "group": _group,
    "compare": _comparison,
    "run": _run_chart,
    "run_metrics": _run_chart,
    "run_mismatch": _mismatch,
}


# The form that writes a block.


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    kind: str
    q: str
    metric: str
    step: int | None
    group: str
    pinned: bool
    chosen: list[Run]
    offered: list[Run]
    metrics: list[tuple[str, list[str]]]
    group_choices: list[tuple[str, str]]
    line: str  # empty: something is still to be chosen
    missing: str

    @property
    def is_of_one_run(self) -> bool:
        return self.kind in OF_ONE_RUN

    @property
    def kinds(self) -> list[tuple[str, str]]:
        return list(TITLES.items())


def offer(team: Team, form: InsertForm, runs: Sequence[str]) -> Offer:
    kind, metric, group = (form.value(name) for name in ("kind", "metric", "group"))
    group = group or ""
    # In the order in which they were ticked first.
    ids = [pk for pk in map(read_whole, runs) if pk is not None]
    by_id = Run.objects.kept().filter(team=team).in_bulk(ids[:100])
    chosen = [by_id[pk] for pk in dict.fromkeys(ids) if pk in by_id][
        : 1 if kind in OF_ONE_RUN else MAX_RUNS
    ]
    q = form.value("q")
    selection = Selection(runs=chosen, num_chosen=len(chosen))
    groups = _groups(chosen, form.value("step")) if kind == "group" else []
    choices = [
        (
            f"{g.step}/{g.prompt_index}",
            f"Step {g.step:,}, prompt {g.prompt_index}: {signal_words(g.signal)}",
        )
        for g in groups
    ]
    group = group if group in dict(choices) else ""
    line, missing = _line(kind, chosen, metric, group, bool(form.value("pinned")))
    return Offer(
        kind=kind,
        q=q,
        metric=metric,
        step=form.value("step"),
        group=group,
        pinned=bool(form.value("pinned")),
        chosen=chosen,
        offered=offer_runs(team, selection, q),
        metrics=list_metrics(chosen, shown=metric) if kind == "chart" else [],
        group_choices=choices,
        line=line,
        missing=missing,
    )


def _groups(chosen: Sequence[Run], step: int | None) -> list[Group]:
    """List the groups of the step, or the newest ones."""
    if not chosen:
        return []
    groups = Group.objects.current().filter(run=chosen[0])
    if step is not None:
        groups = groups.filter(step=step)
    return list(groups.order_by("-step", "prompt_index")[:MAX_GROUPS])


def _line(
    kind: str, chosen: Sequence[Run], metric: str, group: str, pinned: bool
) -> tuple[str, str]:
    """Write the block's line, or what is missing for one."""
    if not chosen:
        return "", "Choose a run." if kind in OF_ONE_RUN else "Choose one or more runs."
    if kind == "compare" and len(chosen) < 2:
        return "", "Choose a second run to compare with."
    if kind == "group" and not group:
        return "", "Choose a group."
    options = {"runs": join_ids(run.pk for run in chosen)}
    if kind == "group":
        step, _, prompt = group.partition("/")
        options = {"run": str(chosen[0].pk), "step": step, "prompt": prompt}
    if kind == "mismatch":
        options = {"run": str(chosen[0].pk)}
    if kind == "chart":
        options["metric"] = metric
    return Block(kind=kind, options=options, wants_pin=pinned).line, ""
