"""What a run learnt, as a row of the table in RESULTS.md and a line of its curve.

python -m tests.bench.learning_table RUN_FOLDER...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

BLOCKS = "▁▂▃▄▅▆▇█"
HEADER = """\
| run | steps | minutes | completion tokens | reward, steps 1-5 | 21-40 | last 20 \
| held out before | after |
|---|---|---|---|---|---|---|---|---|"""


def main(folders: list[str]) -> None:
    runs = [(Path(name).name, read_events(Path(name))) for name in folders]
    lines = [HEADER, *(row(name, events) for name, events in runs), ""]
    lines += [f"    {name}  {sparkline(rewards_of(events))}" for name, events in runs]
    sys.stdout.write("\n".join(lines) + "\n")


def read_events(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "events.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def row(name: str, events: list[dict[str, Any]]) -> str:
    rewards = rewards_of(events)
    groups = [event for event in events if event["type"] == "group_scored"]
    tokens = sum(
        completion["num_tokens"]
        for group in groups
        for completion in group["completions"]
    )
    held_out = [
        event["metrics"]["eval/heldout/mean"]
        for event in events
        if event["type"] == "evaluated"
    ]
    middle = f"{fmean(rewards[20:40]):.3f}" if len(rewards) >= 40 else "–"
    last = rewards[-max(5, len(rewards) // 10) :]
    minutes = (events[-1]["time"] - events[0]["time"]) / 60
    return (
        f"| {name} | {len(rewards)} | {minutes:.1f} | {tokens:,} | "
        f"{fmean(rewards[:5]):.3f} | {middle} | {fmean(last):.3f} | "
        f"{held_out[0]:.3f} | {held_out[-1]:.3f} |"
    )


def rewards_of(events: list[dict[str, Any]]) -> list[float]:
    """Mean training reward of each step."""
    return [
        event["metrics"]["reward/mean"]
        for event in events
        if event["type"] == "step_finished"
    ]


def sparkline(values: list[float], *, width: int = 40) -> str:
    """The curve from its lowest to its highest point, a block for some steps each."""
    size = max(1, -(-len(values) // width))
    means = [fmean(values[i : i + size]) for i in range(0, len(values), size)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    blocks = [BLOCKS[round((mean - low) / span * (len(BLOCKS) - 1))] for mean in means]
    return f"{means[0]:.2f} {''.join(blocks)} {means[-1]:.2f}"


if __name__ == "__main__":
    main(sys.argv[1:])
