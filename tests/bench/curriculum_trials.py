"""Whether a curriculum helps: the starter with and without one, on five seeds.

`nice python -m tests.bench.curriculum_trials FOLDER`: trains each run that FOLDER does
not have yet, one after the other on one thread, and prints a table. So that prompts
come again, 64 of the starter's rows are trained on; 64 others are held out.
"""

from __future__ import annotations

import argparse
import json
import math
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.machine import machine, say
from tests.bench.starter.__main__ import SHIPPED
from trainer.__main__ import main as run_trainer

NUM_ROWS, NUM_HELD_OUT = 128, 64
SEEDS = range(5)
T_4 = 2.776  # of a 95 % interval over 5 values
KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "pools": {"kind": "pools"},
}
CONFIG: dict[str, Any] = {
    "data": {
        "num_eval_rows": NUM_HELD_OUT,
        "chat_template": "none",
        "max_prompt_tokens": 32,
    },
    "rollout": {"prompts_per_step": 8, "group_size": 8, "max_new_tokens": 96},
    "optim": {
        "num_steps": 40,
        "learning_rate": 6e-4,
        "micro_batch_tokens": 4096,
    },
    "evaluation": {"every_steps": 20, "samples_per_prompt": 4},
    "checkpoint": {"every_steps": 0},
    "logging": {"token_groups": 0, "mismatch": False},
    "distributed": {"num_threads": 1},
    "reward": {
        "recipe": {
            "rules": [
                {"name": "format", "kind": "format_tags", "weight": 0.1},
                {"name": "equation", "kind": "countdown", "weight": 0.9},
            ]
        }
    },
}


def train(folder: Path, *, kind: str, seed: int) -> Path:
    """Return the log of a run, trained unless FOLDER has it."""
    place = folder / f"{kind}-{seed}"
    log = place / "out" / "events.jsonl"
    if log.exists() and '"run_finished"' in log.read_text():
        return log
    place.mkdir(parents=True, exist_ok=True)
    with (SHIPPED / "rows.jsonl").open() as rows:
        (place / "rows.jsonl").write_text("".join(islice(rows, NUM_ROWS)))
    tree = CONFIG | {
        "seed": seed,
        "model": {"path": str(SHIPPED / "model")},
        "data": {**CONFIG["data"], "rows": "rows.jsonl"},
        "curriculum": KINDS[kind],
    }
    (place / "run.json").write_text(json.dumps(tree))
    code = run_trainer(
        ["run", str(place / "run.json"), "--out", str(place / "out"), "--resume"]
    )
    assert code == 0, f"{place} ended with code {code}"
    return log


def read(log: Path) -> dict[str, Any]:
    """Return held-out rewards by step, and means over the second half of the steps."""
    events = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [e["metrics"] for e in events if e["type"] == "step_finished"]
    later = steps[len(steps) // 2 :]

    def mean(name: str) -> float:
        return float(np.mean([metrics.get(name, math.nan) for metrics in later]))

    return {
        "held out": {
            e["step"]: e["metrics"]["eval/heldout/mean"]
            for e in events
            if e["type"] == "evaluated"
        },
        "signal": 1 - mean("group/frac_zero_std"),
        "uniform signal": mean("curriculum/uniform_signal"),
    }


def interval(values: list[float]) -> str:
    half = T_4 * np.std(values, ddof=1) / math.sqrt(len(values))
    return f"{np.mean(values):.3f} ± {half:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.absolute()
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for seed in SEEDS:
        for kind, own in runs.items():
            own.append(read(train(folder, kind=kind, seed=seed)))
    say(machine())
    for kind, own in runs.items():
        for step in own[0]["held out"]:
            values = [run["held out"][step] for run in own]
            less = [run["held out"][step] for run in runs["uniform"]]
            paired = [a - b for a, b in zip(values, less, strict=True)]
            say(f"{kind}, step {step}: held-out reward {interval(values)}")
            say(f"    less uniform, by seed: {interval(paired)}")
        for name in ("signal", "uniform signal"):
            say(f"{kind}: {name} {interval([run[name] for run in own])}")


if __name__ == "__main__":
    main()
