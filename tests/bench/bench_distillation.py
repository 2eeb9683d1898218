"""The starter, taught by a teacher of its own size, beside plain GRPO.

    python -m tests.bench.bench_distillation FOLDER [--kinds privileged]

The teacher is the starter after 80 steps of GRPO. Each seed then trains the starter for
40 steps twice: by GRPO alone, and by the distance to the teacher alone. `privileged`
has no other model: half the texts of its starter's warm-up began with a solution, and
the starter with the row's solution before the prompt teaches itself without one. A run
that is in FOLDER already is read, not repeated.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trainer.starter
from tests.bench.machine import heading, say, table
from tests.bench.starter.__main__ import make_starter
from tests.bench.starter.countdown import Teaching
from trainer.config import load_config

STARTER = Path(trainer.starter.__file__).parent / "countdown"
TEACHER_STEPS, NUM_STEPS, EVERY = 80, 40, 5
SEEDS = (0, 1, 2)
REWARD = "eval/heldout/mean"
DISTANCE_ALONE: dict[str, dict[str, Any]] = {
    "advantage": {"weight": 0.0},
    "loss": {"kl_coef": 1.0, "kl_estimator": "k3", "kl_ratio": True},
    "optim": {"learning_rate": 1e-3},
}


def train(folder: Path, *, seed: int, num_steps: int, **parts: dict[str, Any]) -> Path:
    """Train the starter by its own settings but for some parts, unless that is done."""
    if (folder / "done").exists():
        return folder
    tree = load_config(STARTER / "run.toml").model_dump(mode="json")
    tree["seed"] = seed
    tree["data"]["rows"] = str(STARTER / "rows.jsonl")
    parts["optim"] = {"num_steps": num_steps} | parts.get("optim", {})
    parts |= {
        "evaluation": {"every_steps": EVERY},
        "checkpoint": {"every_steps": num_steps},
        "distributed": {"num_threads": 1},
    }
    for part, values in parts.items():
        tree[part] |= values
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "run.json"
    config.write_text(json.dumps(tree))
    subprocess.run(
        [sys.executable, "-m", "trainer", "run", config, "--out", folder], check=True
    )
    (folder / "done").touch()
    return folder


def make_teacher(folder: Path) -> Path:
    """Train the starter by GRPO; returns its model's folder."""
    train(folder, seed=0, num_steps=TEACHER_STEPS)
    return next((folder / "checkpoints").glob(f"*{TEACHER_STEPS}-*/model"))


def taught_parts(teacher: Path) -> dict[str, dict[str, Any]]:
    """The distance to another model, and no reward in the gradient."""
    return DISTANCE_ALONE | {"reference": {"kind": "frozen", "model": str(teacher)}}


def make_reader(folder: Path) -> Path:
    """Make a starter that can read a solution before the prompt; returns its model."""
    if not (folder / "starter.json").exists():
        make_starter(folder, seed=0, teaching=Teaching(hint_share=0.5))
    return folder / "model"


def with_solutions(folder: Path) -> Path:
    """Write the starter's rows with the solution in each prompt."""
    path = folder / "hinted.jsonl"
    with path.open("w") as file:
        for line in (STARTER / "rows.jsonl").read_text().splitlines():
            row = json.loads(line)
            row["prompt"] = f"{row['answer']}\n{row['prompt']}"
            file.write(json.dumps(row) + "\n")
    return path


def privileged_parts(model: Path) -> dict[str, dict[str, Any]]:
    """The model as its own teacher, which reads the row's solution."""
    context = {
        "kind": "frozen",
        "context": "column",
        "context_column": "answer",
        "context_template": "{context}\n{prompt}",
    }
    return DISTANCE_ALONE | {"model": {"path": str(model)}, "reference": context}


def read_metrics(folder: Path, name: str) -> dict[int, float]:
    """Return a metric by step, from the run's log."""
    values = {}
    for line in (folder / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if name in event.get("metrics", {}):
            values[event["step"]] = event["metrics"][name]
    return values


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kinds", default="grpo,distilled", help="default: both")
    args = parser.parse_args(arguments)
    args.folder.mkdir(parents=True, exist_ok=True)
    kinds = args.kinds.split(",")
    parts: dict[str, dict[str, dict[str, Any]]] = {
        "grpo": {},
        "grpo-1e-3": {"optim": {"learning_rate": 1e-3}},
    }
    if "distilled" in kinds:
        teacher = make_teacher(args.folder / "teacher")
        ends = read_metrics(args.folder / "teacher", REWARD)
        say(f"teacher: {ends[0]:.3f} → {ends[TEACHER_STEPS]:.3f}")
        parts["distilled"] = taught_parts(teacher)
    if "privileged" in kinds:
        reader = make_reader(args.folder / "reader")
        hinted = train(
            args.folder / "hinted",
            seed=0,
            num_steps=1,
            model={"path": str(reader)},
            data={"rows": str(with_solutions(args.folder))},
        )
        say(f"with the solution: {read_metrics(hinted, REWARD)[0]:.3f}")
        parts["privileged"] = privileged_parts(reader)
    rows = []
    steps = range(0, NUM_STEPS + 1, EVERY)
    for kind in kinds:
        for seed in SEEDS:
            folder = args.folder / f"{kind}-{seed}"
            train(folder, seed=seed, num_steps=NUM_STEPS, **parts[kind])
            rewards = read_metrics(folder, REWARD)
            rows.append((kind, str(seed), *(f"{rewards[step]:.3f}" for step in steps)))
            if distances := read_metrics(folder, "distill/kl"):
                ends = distances[1], statistics.mean([*distances.values()][-5:])
                say(f"{kind} {seed}: {ends[0]:.4f} → {ends[1]:.4f} nats a token")
        means = [
            [float(row[place + 2]) for row in rows[-len(SEEDS) :]]
            for place in range(len(steps))
        ]
        rows.append((kind, "mean", *(f"{math.fsum(m) / len(m):.3f}" for m in means)))
    say(heading("tests.bench.bench_distillation"))
    say(table(("run", "seed", *map(str, steps)), rows))


if __name__ == "__main__":
    main()
