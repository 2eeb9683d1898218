"""Every preset's scaled form on the starter's task: one figure and one table.

python -m tests.bench.preset_curves --out FOLDER [--steps N] [--starter FOLDER]

All start from the same warm-up, made first where --starter does not name one. What is
drawn is the share of completions whose equation is right, by the same strict rule for
all, since each preset's own reward has a scale of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import plotly.graph_objects as go

from tests.bench.learning_table import read_events, sparkline
from trainer.presets.preset import Preset, load_preset, preset_names

ROOT = Path(__file__).parents[2]
WINDOW = 5
HEADER = """\
| preset | steps | seconds a step | completion tokens | right, first steps | last \
| held-out reward before | after |
|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True, kw_only=True)
class Curve:
    preset: Preset
    right: list[float]  # share of each step's completions
    seconds_per_step: float
    num_tokens: int
    held_out: list[float]  # the preset's own reward


def main() -> None:
    args = _arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    starter = args.starter or _warm_up(args.out / "starter", steps=args.warmup_steps)
    curves = []
    for name in args.only or preset_names():
        started = time.monotonic()
        folder = _train(name, starter, args.out / name, args)
        curves.append(_read(name, folder))
        _say(f"{name}: {time.monotonic() - started:.0f} s")
    draw(curves).write_html(args.out / "presets.html", include_plotlyjs=True)
    table = write_table(curves)
    (args.out / "presets.md").write_text(table, encoding="utf-8")
    _say(table + f"The figure: {args.out / 'presets.html'}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--starter", type=Path, help="a folder that `warmup` made")
    parser.add_argument("--steps", type=int, help="steps a preset (default: its own)")
    parser.add_argument("--only", nargs="+", metavar="PRESET", choices=preset_names())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warmup-steps", type=int, default=650)
    return parser.parse_args()


def _warm_up(folder: Path, *, steps: int) -> Path:
    if not (folder / "starter.json").exists():
        _run("warmup", "--out", folder, "--steps", steps)
    return folder


def _train(name: str, starter: Path, folder: Path, args: argparse.Namespace) -> Path:
    """The run's folder; one that is there already is read as it is."""
    preset = load_preset(name)
    tree = preset.config(
        model=str((starter / "model").resolve()),
        rows=str((starter / "rows.jsonl").resolve()),
        scaled=True,
        changes={
            "optim": {} if args.steps is None else _shortened(preset, args.steps),
            "checkpoint": {"every_steps": 0},
        },
    ).model_dump(mode="json")
    tree["seed"] = args.seed
    log = folder / "out" / "events.jsonl"
    if not (log.exists() and '"run_finished"' in log.read_text(encoding="utf-8")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(json.dumps(tree, indent=1))
        resume = ["--resume"] if log.exists() else []
        _run("run", folder / "run.json", "--out", folder / "out", *resume)
    return folder / "out"


def _shortened(preset: Preset, steps: int) -> dict[str, int]:
    """So many steps, and a warm-up that still fits in."""
    warmup = preset.tree(scaled=True).get("optim", {}).get("warmup_steps", 0)
    return {"num_steps": steps, "warmup_steps": min(warmup, steps - 1)}


def _run(*arguments: object) -> None:
    command = [sys.executable, "-m", "trainer", *(str(each) for each in arguments)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def _read(name: str, folder: Path) -> Curve:
    preset, events = load_preset(name), read_events(folder)
    config = preset.config(model="any", rows="any", scaled=True)
    rules = config.reward.recipe.rules
    equation = next(rule.name for rule in rules if rule.kind == "countdown")
    steps = [event for event in events if event["type"] == "step_finished"]
    groups = [event for event in events if event["type"] == "group_scored"]
    # Of all groups: those that dynamic sampling drops are the all right and all wrong.
    scores = defaultdict[int, list[float]](list)
    for group in groups:
        scores[group["step"]] += [c["rules"][equation] for c in group["completions"]]
    return Curve(
        preset=preset,
        right=[fmean(scores[event["step"]]) for event in steps],
        seconds_per_step=fmean(event["metrics"]["time/step"] for event in steps),
        num_tokens=sum(
            completion["num_tokens"]
            for group in groups
            for completion in group["completions"]
        ),
        held_out=[
            event["metrics"]["eval/heldout/mean"]
            for event in events
            if event["type"] == "evaluated"
        ],
    )


def draw(curves: list[Curve]) -> go.Figure:
    """A line for each preset: the running mean over some steps."""
    figure = go.Figure()
    dashes = ("solid", "dash", "dot")
    for place, curve in enumerate(curves):
        figure.add_scatter(
            x=list(range(1, len(curve.right) + 1)),
            y=_smoothed(curve.right),
            name=curve.preset.name,
            mode="lines",
            # Ten colours are told apart; from the eleventh on, the dash tells.
            line={"dash": dashes[place // 10]},
            hovertemplate="step %{x}: %{y:.1%}",
        )
    figure.update_layout(
        title=f"Presets on the starter's task (mean of {WINDOW} steps)",
        xaxis_title="step",
        yaxis_title="completions whose equation is right",
        yaxis_tickformat=".0%",
        hovermode="x unified",
        template="plotly_white",
    )
    return figure


def _smoothed(values: list[float]) -> list[float]:
    return [
        fmean(values[max(0, end - WINDOW) : end]) for end in range(1, len(values) + 1)
    ]


def write_table(curves: list[Curve]) -> str:
    rows = [
        f"| {curve.preset.name} | {len(curve.right)} | {curve.seconds_per_step:.2f} | "
        f"{curve.num_tokens:,} | {fmean(curve.right[:WINDOW]):.3f} | "
        f"{fmean(curve.right[-WINDOW:]):.3f} | {curve.held_out[0]:.3f} | "
        f"{curve.held_out[-1]:.3f} |\n"
        for curve in curves
    ]
    lines = [f"    {c.preset.name:<21} {sparkline(c.right)}\n" for c in curves]
    return HEADER + "".join(rows) + "\n" + "".join(lines)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
