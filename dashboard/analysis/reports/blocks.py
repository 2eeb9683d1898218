"""What a block shows, as plain data: the same to draw live, and to keep when pinned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from django.http import Http404

from dashboard.accounts.models import Team
from dashboard.analysis.compare.differences import compare_settings, list_differences
from dashboard.analysis.compare.points import AXES, Points, read_points
from dashboard.analysis.compare.seeds import SEEDS, arrange
from dashboard.analysis.compare.series import make_series
from dashboard.analysis.compare.verdicts import compare_summaries, conclude
from dashboard.analysis.mismatch.advice import read_lab
from dashboard.analysis.reports.block_options import (
    Block,
    describe_runs,
    find_runs,
    newest_of,
    read_options,
)
from dashboard.completions.groups import get_group
from dashboard.completions.rewards import (
    GroupRank,
    rank_completions,
    rule_weights,
    sort_ranks,
    step_recipe,
)
from dashboard.completions.turns import transcript_of
from dashboard.runs.charts.series import read_evaluated
from dashboard.runs.models import Run

MAX_CHARS = 4_000  # of one text
MAX_VALUE_CHARS = 300  # of a setting's value
MAX_SETTINGS = 60


def read_group(team: Team, options: dict[str, Any]) -> dict[str, Any]:
    runs, missing = find_runs(team, [options["run"]])
    if not runs:
        return {"gone": missing}
    run, step, prompt = runs[0], options["step"], options["prompt"]
    try:
        group = get_group(run, step, prompt)
    except Http404:
        message = f"{run.name} has no stored group of prompt {prompt} at step {step}."
        return {"gone": [message]}
    weights, recipe = rule_weights(run, step), step_recipe(run, step)
    completions = group.completions
    ranked = rank_completions(group, completions, weights, recipe)
    ranks = sort_ranks(ranked, options["sort"])[: options["completions"]]
    return {
        "run": {"id": group.run_id, "name": run.name},
        "step": group.step,
        "prompt_index": group.prompt_index,
        "signal": group.signal,
        "reward_mean": group.reward_mean,
        "reward_std": group.reward_std,
        "prompt": _cut(group.prompt),
        "answer": None if group.answer is None else _cut(group.answer_text),
        "num_completions": len(completions),
        "completions": [_describe_completion(rank) for rank in ranks],
        "gone": [],
    }


def _describe_completion(rank: GroupRank) -> dict[str, Any]:
    completion = rank.completion
    return {
        "number": completion.position + 1,
        "text": _cut(transcript_of(completion)),
        "reward": completion.reward,
        "advantage": completion.advantage,
        "num_tokens": completion.num_tokens,
        "is_cut_short": completion.end_reason == "length",
        "is_best": rank.is_best,
        "is_worst": rank.is_worst,
        "rules": [
            {"name": part.name, "score": part.score, "weight": part.weight}
            for part in rank.parts
        ],
    }


def _cut(text: str) -> dict[str, Any]:
    return {"text": text[:MAX_CHARS], "num_chars": len(text)}


def read_chart(team: Team, options: dict[str, Any]) -> dict[str, Any]:
    runs, missing = find_runs(team, options["runs"])
    return {**draw_from(runs, options), **newest_of(runs), "gone": missing}


def draw_from(runs: Sequence[Run], options: dict[str, Any]) -> dict[str, Any]:
    """Read the points, as measured: what smooths and draws them comes later."""
    axis = options["x"]
    points = read_points(runs, options["metric"], axis=axis)
    return {
        "metric": options["metric"],
        "axis": AXES[axis],
        "is_by_step": axis == "step",
        "is_log": options["y"] == "log",
        "smoothing": options["smooth"],
        "lines": [
            {**described, **_points(points[run.pk], axis)}
            for run, described in zip(runs, describe_runs(runs), strict=True)
        ],
    }


def _points(points: Points, axis: str) -> dict[str, Any]:
    series = make_series(points, smoothing=0)
    x = [] if axis == "step" else series.x
    values = [float(f"{value:.7g}") for value in series.values]
    return {"steps": series.steps, "x": x, "values": values}


def read_comparison(team: Team, options: dict[str, Any]) -> dict[str, Any]:
    runs, missing = find_runs(team, options["runs"])
    if not runs:
        return {"gone": missing}
    settings = compare_settings(runs)
    differing = list_differences(settings)
    return {
        "conclusion": conclude(arrange(runs, SEEDS)).text,
        "runs": describe_runs(runs),
        "columns": [
            {
                "title": column.title,
                "figures": [
                    {
                        "value": f.value,
                        "delta": f.delta,
                        "direction": f.direction,
                    }
                    for f in column.figures
                ],
            }
            for column in compare_summaries(runs, [[i] for i in range(len(runs))])
        ],
        "settings": [
            {
                "key": setting.key,
                "title": setting.title,
                "values": [_cut_value(value) for value in setting.values],
            }
            for setting in differing[:MAX_SETTINGS]
        ],
        "num_settings": len(settings),
        "num_differing": len(differing),
        "chart": draw_from(runs, options) if options["metric"] else None,
        **newest_of(runs),
        "gone": missing,
    }


def _cut_value(value: str | None) -> str | None:
    if value is None or len(value) <= MAX_VALUE_CHARS:
        return value
    return f"{value[:MAX_VALUE_CHARS]}… ({len(value):,} characters)"


def read_table(team: Team, options: dict[str, Any]) -> dict[str, Any]:
    """Read the newest value of each metric; a query per run that is asked for
    `eval/…`.
    """
    runs, missing = find_runs(team, options["runs"])
    metrics = options["metrics"]
    return {
        "metrics": metrics,
        "runs": [
            {
                **described,
                "seconds": run.took.total_seconds() if run.took else None,
                "values": _newest(run, metrics),
            }
            for run, described in zip(runs, describe_runs(runs), strict=True)
        ],
        **newest_of(runs),
        "gone": missing,
    }


def _newest(run: Run, metrics: list[str]) -> list[float | None]:
    last = run.summary.get("last", {})
    evaluated = read_evaluated([run], metrics)[run.pk]
    return [
        float(evaluated[name].values[-1]) if name in evaluated else last.get(name)
        for name in metrics
    ]


def read_mismatch(team: Team, options: dict[str, Any]) -> dict[str, Any]:
    """Read the advice on a run's sampler, and its corrections or the gap by step."""
    runs, missing = find_runs(team, [options["run"]])
    if not runs:
        return {"gone": missing}
    run, step = runs[0], options["step"]
    lab = read_lab(run, None if step == "" else step)
    if lab is None:
        return {"gone": [f"{run.name} has not measured its sampler."]}
    means = lab.totals.mean
    line = {
        "steps": means.steps.tolist(),
        "x": [],
        "values": [float(f"{value:.4g}") for value in means.values.tolist()],
    }
    described = describe_runs(runs)[0]
    return {
        "run": {"id": run.pk, "name": run.name},
        "step": lab.step,
        "stored_step": lab.stored_step,
        "verdict": f"{lab.advice.verdict} {lab.advice.action}",
        "numbers": [asdict(number) for number in lab.evidence.shown],
        "rows": [asdict(row) for row in lab.rows],
        "chart": {
            "metric": "mismatch/mean",
            "axis": AXES["step"],
            "is_by_step": True,
            "is_log": False,
            "smoothing": 0.0,
            "lines": [described | line],
        }
        if options["show"] == "chart"
        else None,
        **newest_of(runs),
        "gone": [],
    }


READERS: dict[str, Callable[[Team, dict[str, Any]], dict[str, Any]]] = {
    "chart": read_chart,
    "group": read_group,
    "compare": read_comparison,
    "table": read_table,
    "mismatch": read_mismatch,
}


def read_data(team: Team, block: Block) -> dict[str, Any]:
    """ValueError if an option of the block is invalid."""
    return READERS[block.kind](team, read_options(block))


def has_content(data: dict[str, Any]) -> bool:
    """False if all runs of the block are missing."""
    return any(data.get(name) for name in ("lines", "runs", "completions", "rows"))
