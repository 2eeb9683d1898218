"""A block chosen from what the team has, in place of being typed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.accounts.models import Team
from dashboard.insights.metrics import list_metrics
from dashboard.insights.selection import Selection, join_ids, offer_runs
from dashboard.pages.templatetags.runs import signal_words
from dashboard.reports.block_lines import Block
from dashboard.reports.blocks.options import MAX_RUNS
from dashboard.reports.forms import InsertForm
from dashboard.runs.models import Run
from dashboard.samples.models import Group

MAX_GROUPS = 24
TITLES = {
    "chart": "Chart",
    "group": "Group",
    "compare": "Comparison",
    "table": "Figures of runs",
}


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
    def kinds(self) -> list[tuple[str, str]]:
        return list(TITLES.items())


def offer(team: Team, form: InsertForm, runs: Sequence[str]) -> Offer:
    kind, metric, group = (form.value(name) for name in ("kind", "metric", "group"))
    group = group or ""
    chosen = _chosen(team, runs)[: 1 if kind == "group" else MAX_RUNS]
    q = form.value("q")
    selection = Selection(runs=chosen, num_chosen=len(chosen))
    groups = _groups(chosen, form.value("step")) if kind == "group" else []
    choices = [(f"{g.step}/{g.prompt_index}", _describe(g)) for g in groups]
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


def _chosen(team: Team, runs: Sequence[str]) -> list[Run]:
    """In the order in which they were ticked first."""
    ids = [int(t) for t in runs if t.isascii() and t.isdigit() and len(t) <= 18]
    found = Run.objects.kept().filter(team=team).in_bulk(ids[:100])
    return [found[pk] for pk in dict.fromkeys(ids) if pk in found]


def _groups(chosen: Sequence[Run], step: int | None) -> list[Group]:
    """Of the step, or of the newest ones."""
    if not chosen:
        return []
    groups = Group.objects.current().filter(run=chosen[0])
    if step is not None:
        groups = groups.filter(step=step)
    return list(groups.order_by("-step", "prompt_index")[:MAX_GROUPS])


def _describe(group: Group) -> str:
    signal = signal_words(group.signal)
    return f"Step {group.step:,}, prompt {group.prompt_index}: {signal}"


def _line(
    kind: str, chosen: Sequence[Run], metric: str, group: str, pinned: bool
) -> tuple[str, str]:
    """The block's line, or what is missing for one."""
    if not chosen:
        return "", "Choose a run." if kind == "group" else "Choose one run or several."
    if kind == "compare" and len(chosen) < 2:
        return "", "Choose a second run to compare with."
    if kind == "group" and not group:
        return "", "Choose a group."
    options = {"runs": join_ids(run.pk for run in chosen)}
    if kind == "group":
        step, _, prompt = group.partition("/")
        options = {"run": str(chosen[0].pk), "step": step, "prompt": prompt}
    if kind == "chart":
        options["metric"] = metric
    return Block(kind=kind, options=options, wants_pin=pinned).line, ""
