"""DeepSeekMath's methods from one start: SFT, RFT, online RFT, GRPO by outcome and by
process (arXiv:2402.03300, section 5.2), on the starter's task.

    python -m tests.bench.unified_view STARTER OUT [--steps 60] [--seeds 0 1 2]

STARTER is a folder that `python -m trainer warmup` made. Each method does the same
number of steps on the same prompts, with the same learning rate; the one thing that
differs is where completions come from and what they are credited with. A run that is
complete in OUT is not done again.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from trainer.config import load_config

STEP_RULE = {
    "name": "equations",
    "kind": "equations",
    "weight": 0.5,
    "params": {"target_column": "target"},
}
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "SFT": {
        "rollout": {"source": "dataset", "group_size": 1, "prompts_per_step": 256},
        "advantage": {"credit": "ones"},
        "loss": {"surrogate": "reinforce"},
    },
    "RFT": {
        "rollout": {"source": "start"},
        "advantage": {"credit": "indicator"},
        "loss": {"surrogate": "reinforce"},
    },
    "online RFT": {
        "advantage": {"credit": "indicator"},
        "loss": {"surrogate": "reinforce"},
    },
    "GRPO, outcome": {"loss": {"aggregation": "sequence_mean_token_mean"}},
    "GRPO, process": {
        "advantage": {"credit": "process"},
        "loss": {"aggregation": "sequence_mean_token_mean"},
        "reward": {
            "step_recipe": {"rules": [STEP_RULE]},
            "step_pattern": r"[.!]|</think>",
        },
    },
}
# Two-sided 95 % quantiles of Student's t by degrees of freedom.
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("starter", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    results = {}
    for seed in chosen.seeds:
        for method, changes in METHODS.items():
            name = f"{method.replace(', ', '-').replace(' ', '-').lower()}-{seed}"
            folder = chosen.out / name
            tree = run_tree(chosen, changes, seed=seed)
            results[method, seed] = last_evaluations(run(folder, tree))
            sys.stderr.write(f"{name}: {results[method, seed][-1]}\n")
    sys.stdout.write(table(results, chosen.seeds) + "\n")


def run_tree(
    chosen: argparse.Namespace, changes: dict[str, dict[str, Any]], *, seed: int
) -> dict[str, Any]:
    """The starter's run with a method's changes, and shorter."""
    tree = load_config(chosen.starter / "run.toml").model_dump(mode="json")
    tree["seed"] = seed
    tree["data"]["rows"] = str((chosen.starter / "rows.jsonl").resolve())
    tree["optim"]["num_steps"] = chosen.steps
    tree["evaluation"] |= {"every_steps": 20, "samples_per_prompt": 16}
    tree["checkpoint"]["every_steps"] = 0
    for part, values in changes.items():
        tree[part] |= values
    return tree


def run(folder: Path, tree: dict[str, Any]) -> Path:
    """The log of the finished run."""
    log = folder / "events.jsonl"
    if log.exists() and '"type":"run_finished"' in log.read_text(encoding="utf-8"):
        return log
    config = folder.with_suffix(".json")
    config.write_text(json.dumps(tree), encoding="utf-8")
    command = [sys.executable, "-m", "trainer", "run", str(config), "--out"]
    subprocess.run([*command, str(folder)], check=True, stdout=subprocess.DEVNULL)
    return log


def last_evaluations(log: Path) -> list[dict[str, float]]:
    """The held-out metrics before the first step and after the last."""
    events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    found = [event["metrics"] for event in events if event["type"] == "evaluated"]
    names = ("mean", "pass@1", "pass@4", "pass@16")
    return [
        {name: metrics[f"eval/heldout/{name}"] for name in names} for metrics in found
    ]


def table(
    results: dict[tuple[str, int], list[dict[str, float]]], seeds: list[int]
) -> str:
    """Means over the seeds with 95 % intervals by Student's t."""
    lines = [
        "| method | mean reward | pass@1 | pass@4 | pass@16 |",
        "|---|---|---|---|---|",
    ]
    first = next(iter(METHODS))
    lines.append(line("start", [results[first, seed][0] for seed in seeds]))
    lines += [
        line(method, [results[method, seed][-1] for seed in seeds])
        for method in METHODS
    ]
    return "\n".join(lines)


def line(name: str, found: list[dict[str, float]]) -> str:
    cells = [interval([metrics[key] for metrics in found]) for key in found[0]]
    return f"| {name} | {' | '.join(cells)} |"


def interval(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.3f}"
    half = T95[len(values) - 1] * stdev(values) / math.sqrt(len(values))
    return f"{fmean(values):.3f} ± {half:.3f}"


if __name__ == "__main__":
    main()
