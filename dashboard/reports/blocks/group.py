"""The completions of one prompt at one step, with their rewards and advantages."""

from __future__ import annotations

from typing import Any

from django.http import Http404

from dashboard.accounts.models import Team
from dashboard.reports.blocks.runs import find_runs
from dashboard.samples.groups import get_group
from dashboard.samples.models import Group
from dashboard.samples.rewards import (
    Standing,
    rank_completions,
    rule_weights,
    sort_standings,
    step_recipe,
)

MAX_CHARS = 4_000  # of one text


def read_group(team: Team, options: dict[str, Any]) -> dict[str, Any]:
    runs, gone = find_runs(team, [options["run"]])
    if not runs:
        return {"gone": gone}
    run, step, prompt = runs[0], options["step"], options["prompt"]
    try:
        group = get_group(run, step, prompt)
    except Http404:
        said = f"{run.name} keeps no group of prompt {prompt} at step {step}."
        return {"gone": [said]}
    weights, recipe = rule_weights(run, step), step_recipe(run, step)
    completions = group.completions
    standings = rank_completions(group, completions, weights, recipe)
    shown = sort_standings(standings, options["sort"])[: options["completions"]]
    return {
        **_describe(group, run.name),
        "num_completions": len(completions),
        "completions": [_describe_completion(standing) for standing in shown],
        "gone": [],
    }


def _describe(group: Group, name: str) -> dict[str, Any]:
    return {
        "run": {"id": group.run_id, "name": name},
        "step": group.step,
        "prompt_index": group.prompt_index,
        "signal": group.signal,
        "reward_mean": group.reward_mean,
        "reward_std": group.reward_std,
        "prompt": _cut(group.prompt),
        "answer": None if group.answer is None else _cut(group.answer),
    }


def _describe_completion(standing: Standing) -> dict[str, Any]:
    completion = standing.completion
    return {
        "number": completion.position + 1,
        "text": _cut(completion.text),
        "reward": completion.reward,
        "advantage": completion.advantage,
        "num_tokens": completion.num_tokens,
        "is_cut_short": completion.end_reason == "length",
        "is_best": standing.is_best,
        "is_worst": standing.is_worst,
        "rules": [
            {"name": part.name, "score": part.score, "weight": part.weight}
            for part in standing.parts
        ],
    }


def _cut(text: str) -> dict[str, Any]:
    return {"text": text[:MAX_CHARS], "num_chars": len(text)}
