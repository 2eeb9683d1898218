"""A run's header, alerts and costs; places of comments; signed numbers: `{% load
runs %}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from django import template
from django.template import Context

from dashboard.accounts.templatetags.numbers import si, sig3
from dashboard.alerts.models import OPEN
from dashboard.alerts.queries import describe_for_page
from dashboard.completions.models import Comment
from dashboard.completions.prompt_forms import CLASS_WORDS
from dashboard.completions.sparklines import signal_words
from dashboard.completions.turns import blocks_of, describe_end, fold, token_turns
from dashboard.costs.ledger import Bill, write_money
from dashboard.pages.help import explain
from dashboard.pages.templatetags.addresses import address
from dashboard.project.database import fetch_all
from dashboard.runs.control import describe_loss
from dashboard.runs.models import Run
from dashboard.runs.progress import (
    Progress,
    describe_progress,
    describe_silence,
    tab_title,
)
from dashboard.runs.queries import list_children
from dashboard.supervision.publishing import name_archive
from trainer.metric_names import title_of

register = template.Library()
register.filter("turn_blocks", blocks_of)
register.filter("token_turns", token_turns)
register.filter("fold", fold)
register.filter("end_words", describe_end)

# A run's tabs and the views in each: a page's `tab`, its title, its address.
RUN_TABS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Overview": (("overview", "Overview", "run"),),
    "Metrics": (("metrics", "Metrics", "run_metrics"),),
    "Samples": (
        ("groups", "By step", "groups"),
        ("completions", "Search", "completions"),
        ("prompts", "By prompt", "run_prompts"),
        ("questions", "Questions", "run_questions"),
        ("reward-log", "Reward log", "run_reward_log"),
    ),
    "Health": (
        ("health", "Alerts and audit", "run_health"),
        ("mismatch", "Sampler mismatch", "run_mismatch"),
    ),
    "Checkpoints": (("checkpoints", "Checkpoints", "run_checkpoints"),),
    "Details": (
        ("config", "Settings", "run_config"),
        ("cost", "Cost", "run_cost"),
        ("logs", "Logs", "run_logs"),
        ("lineage", "Lineage", "run_lineage"),
        ("export", "Export", "run_export"),
    ),
}


@register.filter
def metric_title(name: str) -> str:
    """Write a metric in words, with its unit."""
    return title_of(name, with_unit=True)


@register.filter
def metric_choice(name: str) -> str:
    """Write a metric's title and name, to pick it by."""
    title = title_of(name)
    return name if title == name else f"{title} · {name}"


@register.inclusion_tag("includes/about.html")
def about(term: str, title: str = "") -> dict[str, str]:
    """ⓘ, which opens the help's entry of a metric, setting or term, if it has one."""
    explanations = explain(term)
    return (
        {"term": term, "title": title or explanations[0].title} if explanations else {}
    )


@register.simple_tag(takes_context=True)
def run_tabs(context: Context) -> list[dict[str, Any]]:
    """List a run's tabs with `title`, `url`, `is_open` and the open one's views."""
    at = (context["team"].slug, context["run"].id)
    here = context["tab"]
    tabs = []
    for title, views in RUN_TABS.items():
        is_open = here in (name for name, *_ in views)
        tabs.append(
            {
                "title": title,
                "url": address(views[0][2], *at),
                "is_open": is_open,
                "views": [
                    {"name": name, "title": words, "url": address(route, *at)}
                    for name, words, route in views
                ]
                if is_open and len(views) > 1
                else [],
            }
        )
    return tabs


@register.simple_tag
def size_of_sweep(run: Run) -> int:
    """Count the runs that it was launched with, itself included; one query."""
    return Run.objects.filter(sweep=run.sweep_id).count()


HEADER = """
    SELECT EXISTS (
        SELECT FROM runs_runstar WHERE run_id = %(run)s AND user_id = %(user)s
    ), (SELECT count(*) FROM samples_comment WHERE commented_run_id = %(run)s)"""


@register.simple_tag(takes_context=True)
def header_of(context: Context) -> dict[str, Any]:
    """Read the reader's star and the number of comments; one query for both uses."""
    user, run = context["request"].user, context["run"]
    if "shown_header" not in vars(run):
        ((is_starred, num),) = fetch_all(HEADER, {"run": run.pk, "user": user.pk})
        vars(run)["shown_header"] = {"is_starred": is_starred, "num_comments": num}
    header: dict[str, Any] = vars(run)["shown_header"]
    return header


@register.simple_tag(takes_context=True)
def may_write(context: Context) -> bool:
    """Tell whether the reader may change the team's things; viewers may not."""
    team = context["team"]
    return any(m.team_id == team.id and m.can_write for m in context["memberships"])


@register.simple_tag
def alerts_of(run: Run) -> list[dict[str, Any]]:
    """List the run's alerts; no query if it never had one."""
    return describe_for_page(run) if run.alerts_seq else []


@register.filter
def num_open(alerts: list[dict[str, Any]]) -> int:
    return sum(alert["state"] in OPEN for alert in alerts)


@register.filter
def firing(alerts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """List alerts that no one has acknowledged."""
    return [a for a in alerts if a["state"] == "firing" and not a["is_muted"]]


@register.simple_tag
def progress_of(run: Run) -> Progress:
    """Describe its progress, once for the header and the Overview."""
    if "shown_progress" not in vars(run):
        vars(run)["shown_progress"] = describe_progress(run)
    progress: Progress = vars(run)["shown_progress"]
    return progress


class Place(NamedTuple):
    """Where a comment is."""

    address: str
    words: str


@register.simple_tag(takes_context=True)
def place_of(context: Context, comment: Comment) -> Place:
    """Return the address of a comment, and what it is on in words."""
    slug, at = context["team"].slug, f"#comment-{comment.pk}"
    if comment.run:
        return Place(address("run", slug, comment.run.pk) + at, comment.run.name)
    if comment.report:
        page = address("report", slug, comment.report.pk)
        return Place(page + at, comment.report.title)
    group = comment.group
    assert group is not None
    page = address("group", slug, group.run_id, group.step, group.prompt_index)
    words = f"{group.run.name}, step {group.step}, prompt {group.prompt_index}"
    if comment.position is not None:
        words += f", completion {comment.position + 1}"
    return Place(page + at, words)


# Each costs a query.
register.simple_tag(list_children, name="children_of")
register.simple_tag(describe_loss, name="loss_of")
register.filter(signal_words)
register.filter(tab_title)
register.filter(describe_silence)


@register.filter
def kind_words(kind: str) -> str:
    """Name a class of prompts."""
    return CLASS_WORDS.get(kind, kind)


@register.simple_tag
def uses_of(run: Run, step: int, which: str) -> list[tuple[str, str]]:
    """List what fetches a checkpoint's model, and what loads it."""
    folder = name_archive(run, step)
    load = (
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        f'model = AutoModelForCausalLM.from_pretrained("{folder}")\n'
        f'tokenizer = AutoTokenizer.from_pretrained("{folder}")'
    )
    get = (
        f"cohort checkpoints get {run.pk} {which} --to {folder}.tar\n"
        f"tar xf {folder}.tar"
    )
    serve = f"vllm serve ./{folder}"
    return [("Command line", get), ("transformers", load), ("vLLM", serve)]


@register.filter
def count_children(children: list[Run]) -> str:
    """Count forks and clones in words: "1 fork, 2 clones"."""
    num_forks = sum(child.fork_step is not None for child in children)
    counts = {"fork": num_forks, "clone": len(children) - num_forks}
    return ", ".join(
        f"{num:,} {word}{'' if num == 1 else 's'}"
        for word, num in counts.items()
        if num
    )


@register.filter
def signed(value: object) -> str:
    """+0.8123, −0.5, 0: the sign is always there, and as wide as a plus."""
    text = sig3(value)
    return text if text in {"0", "–"} or text.startswith("−") else "+" + text


# Costs.

USED = {
    "calls": "judge calls",
    "from_file": "reused answers",
    "input_tokens": "input tokens",
    "cached_tokens": "cached input tokens",
    "output_tokens": "output tokens",
    "calls_without_usage": "judge calls with unknown tokens",
}


@register.filter
def money(costs: Mapping[str, float]) -> str:
    """Write costs by currency, which are never added."""
    return " + ".join(write_money(cost, name) for name, cost in sorted(costs.items()))


register.filter("in_currency", write_money)


@register.filter
def amounts(bill: Bill) -> Iterator[str]:
    """Yield hours, tokens and calls in words."""
    if bill.hours_text:
        yield bill.hours_text
    for name, words in USED.items():
        if bill.amounts.get(name):
            yield f"{si(bill.amounts[name])} {words}"
