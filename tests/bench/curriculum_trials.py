"""Whether a curriculum helps: the starter with and without one, on five seeds.

`nice python -m tests.bench.curriculum_trials FOLDER [--rows mixed]`: trains each run
that FOLDER does not have yet, one after the other on one thread, and prints a table.
So that prompts come again, 64 of the starter's rows are trained on; 64 others are held
out. Of mixed rows two of three cannot be solved, as in data that is too hard for its
model: 48 of the starter's, and 96 whose target no plan reaches.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.machine import machine, say
from tests.bench.starter.__main__ import SHIPPED
from tests.bench.starter.countdown import MAX_TARGET, plans_for
from trainer.__main__ import main as run_trainer

NUM_HELD_OUT, NUM_SOLVABLE = 64, {"starter": 64, "mixed": 48}
SEEDS = range(5)
T_4 = 2.776  # of a 95 % interval over 5 values
KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "starter": {"uniform": {}, "pools": {"kind": "pools"}},
    "mixed": {
        "uniform": {},
        "pools": {"kind": "pools"},
        "gate": {"kind": "learnability", "drop_after": 2, "recheck_every": 50},
    },
}
PARTS: dict[str, dict[str, dict[str, Any]]] = {
    "starter": {},
    "mixed": {
        "data": {"num_eval_rows": 0},
        "evaluation": {"sets": {"solvable": "held_out.jsonl"}},
        "rollout": {"prompts_per_step": 16},
        "optim": {"num_steps": 60, "learning_rate": 3e-4},
    },
}
CONFIG: dict[str, Any] = {
    "data": {
        "rows": "rows.jsonl",
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


def write_rows(place: Path, rows: str) -> None:
    """Write the rows; of mixed ones those that are held out apart."""
    with (SHIPPED / "rows.jsonl").open() as file:
        lines = list(islice(file, NUM_HELD_OUT + NUM_SOLVABLE[rows]))
    if rows == "mixed":
        (place / "held_out.jsonl").write_text("".join(lines[:NUM_HELD_OUT]))
        del lines[:NUM_HELD_OUT]
        chance = random.Random(0)
        lines += [unsolvable(line, chance) for line in lines for _ in range(2)]
    (place / "rows.jsonl").write_text("".join(lines))


def unsolvable(line: str, chance: random.Random) -> str:
    """Return a row with its numbers and a target that no plan reaches."""
    row = json.loads(line)
    numbers = row["columns"]["numbers"]
    reached = {plan.value for plan in plans_for(tuple(sorted(numbers)))}
    target = chance.choice(sorted({*range(1, MAX_TARGET + 1)} - reached))
    prompt = f"{' '.join(map(str, chance.sample(numbers, 3)))} > {target}"
    columns = {"numbers": numbers, "target": target}
    return json.dumps({"prompt": prompt, "columns": columns}) + "\n"


def train(folder: Path, *, rows: str, kind: str, seed: int) -> Path:
    """Return the log of a run, trained unless FOLDER has it."""
    place = folder / (
        f"{kind}-{seed}" if rows == "starter" else f"{rows}-{kind}-{seed}"
    )
    log = place / "out" / "events.jsonl"
    if log.exists() and '"run_finished"' in log.read_text():
        return log
    place.mkdir(parents=True, exist_ok=True)
    write_rows(place, rows)
    tree = CONFIG | {
        "seed": seed,
        "model": {"path": str(SHIPPED / "model")},
        "curriculum": KINDS[rows][kind],
    }
    for part, values in PARTS[rows].items():
        tree[part] = CONFIG[part] | values
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
            e["step"]: e["metrics"][f"eval/{e['name']}/mean"]
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
    parser.add_argument("--rows", choices=list(KINDS), default="starter")
    args = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS[args.rows]}
    for seed in SEEDS:
        for kind, own in runs.items():
            log = train(args.folder.absolute(), rows=args.rows, kind=kind, seed=seed)
            own.append(read(log))
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
