"""A report as plain values, for a process that draws them on paper."""

from __future__ import annotations

from typing import Any

from dashboard.accounts.templatetags.numbers import duration, sig4
from dashboard.reports.document import Shown
from dashboard.reports.drawing.chart import draw_chart
from dashboard.reports.pdf.items import Chart, Item, Panel, Prose, Table, Text
from dashboard.reports.words import describe_block, describe_newest, name_block
from dashboard.samples.templatetags.signals import signal_words, signed


def write_paper(parts: list[str | Shown]) -> list[Prose | Panel]:
    return [
        Prose(markdown=part) if isinstance(part, str) else _panel(part)
        for part in parts
    ]


def _panel(shown: Shown) -> Panel:
    words = [w for w in (describe_block(shown), describe_newest(shown)) if w]
    if shown.problem:
        return Panel(name=name_block(shown), words="", items=[Text(text=shown.problem)])
    items: list[Item] = [Text(text=said) for said in shown.data.get("gone", [])]
    if shown.has_content:
        items += WRITERS[shown.block.kind](shown.data)
    return Panel(name=name_block(shown), words=" · ".join(words), items=items)


def _chart(data: dict[str, Any]) -> list[Item]:
    drawing = draw_chart(data)
    if drawing is None:
        said = f"No run here has values of {data['metric']} by {data['axis']}."
        return [Text(text=said)]
    smoothed = f"Bold lines are smoothed by {data['smoothing']:g}. "
    note = smoothed if data["smoothing"] else ""
    return [
        Chart(
            drawing=drawing,
            legend=[(line["colour"], _last(line)) for line in data["lines"]],
        ),
        Text(text=f"{note}At most 1,000 points of each run, spikes kept.", small=True),
    ]


def _last(line: dict[str, Any]) -> str:
    if not line["values"]:
        return f"{line['name']}: no value"
    at = f"{sig4(line['values'][-1])} at step {line['steps'][-1]:,}"
    return f"{line['name']}: {at}"


def _group(data: dict[str, Any]) -> list[Item]:
    facts = (
        f"{signal_words(data['signal'])} · mean reward {sig4(data['reward_mean'])} · "
        f"spread {sig4(data['reward_std'])} · {len(data['completions'])} of "
        f"{data['num_completions']} completions shown"
    )
    items: list[Item] = [Text(name="Prompt", text=_cut(data["prompt"]), mono=True)]
    if data["answer"]:
        items.append(Text(name="Answer", text=_cut(data["answer"]), mono=True))
    items.append(Text(text=facts, small=True))
    return items + [item for one in data["completions"] for item in _completion(one)]


def _completion(one: dict[str, Any]) -> list[Item]:
    reward = "no score" if one["reward"] is None else sig4(one["reward"])
    cut = ", cut at the length limit" if one["is_cut_short"] else ""
    name = (
        f"Completion {one['number']} · reward {reward} · advantage "
        f"{signed(one['advantage'])} · {one['num_tokens']:,} tokens{cut}"
    )
    rules = " · ".join(_rule(rule) for rule in one["rules"])
    text = _cut(one["text"]) or "(empty)"
    return [Text(name=name, text=text, mono=True), Text(text=rules, small=True)]


def _rule(rule: dict[str, Any]) -> str:
    score = "no score" if rule["score"] is None else sig4(rule["score"])
    times = "" if rule["weight"] is None else f" × {sig4(rule['weight'])}"
    return f"{rule['name']} {score}{times}"


def _cut(text: dict[str, Any]) -> str:
    shown = str(text["text"])
    if text["num_chars"] <= len(shown):
        return shown
    return f"{shown} … {len(shown):,} of {text['num_chars']:,} characters"


def _comparison(data: dict[str, Any]) -> list[Item]:
    titles = [column["title"] for column in data["columns"]]
    rows = [
        [
            run["name"],
            run["state"],
            f"{run['step']:,} of {run['num_steps']:,}",
            *(_figure(column["figures"][i]) for column in data["columns"]),
        ]
        for i, run in enumerate(data["runs"])
    ]
    items: list[Item] = [
        Table(head=["Run", "State", "Step", *titles], rows=rows, num_words=2)
    ]
    if data["chart"]:
        items += [Text(text=data["chart"]["metric"], small=True)]
        items += _chart(data["chart"])
    if len(data["runs"]) > 1:
        items += _settings(data)
    return items


def _figure(figure: dict[str, Any]) -> str:
    if figure["delta"] is None:
        return sig4(figure["value"])
    return f"{sig4(figure['value'])} ({signed(figure['delta'])})"


def _settings(data: dict[str, Any]) -> list[Item]:
    shown, differ = len(data["settings"]), data["num_differing"]
    some = f"{shown} of the " if shown < differ else ""
    said = f"{some}{differ} of {data['num_settings']} settings that differ"
    names = [run["name"] for run in data["runs"]]
    rows = [
        [s["key"], *("absent" if v is None else v for v in s["values"])]
        for s in data["settings"]
    ]
    table = Table(head=["Setting", *names], rows=rows, num_words=1 + len(names))
    return [Text(text=said, small=True), *([table] if rows else [])]


def _table(data: dict[str, Any]) -> list[Item]:
    rows = [
        [
            run["name"],
            run["state"],
            f"{run['step']:,} of {run['num_steps']:,}",
            str(duration(run["seconds"])),
            *(sig4(value) for value in run["values"]),
        ]
        for run in data["runs"]
    ]
    head = ["Run", "State", "Step", "Time", *data["metrics"]]
    return [Table(head=head, rows=rows, num_words=2)]


WRITERS = {
    "chart": _chart,
    "group": _group,
    "compare": _comparison,
    "table": _table,
}
