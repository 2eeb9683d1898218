"""What watching costs training: `pytest -m load -s tests/load/bench_step_time.py`.

The starter model trains for some steps with nobody watching, then the same run again
with viewers, in turns, every second pair the other way round. All have one seed, so the
same step samples the same tokens, and its times are compared with one another. Viewers
live on other machines: here their process is SCHED_IDLE, and runs when nothing else
wants to. COHORT_LOAD_STARTER is what `python -m trainer warmup --out` made.
COHORT_LOAD_PAIRS of COHORT_LOAD_STEPS steps, COHORT_LOAD_VIEWERS.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.machine import heading, say, spread, table, tell
from tests.load.stack import ROOT, Meter, Stack, running_stack

pytestmark = pytest.mark.load
NUM_VIEWERS = int(os.environ.get("COHORT_LOAD_VIEWERS", "200"))
NUM_PAIRS = int(os.environ.get("COHORT_LOAD_PAIRS", "6"))
NUM_STEPS = int(os.environ.get("COHORT_LOAD_STEPS", "16"))
WARMUP = 3
STARTER = Path(os.environ.get("COHORT_LOAD_STARTER", ROOT / ".cohort/bench/starter"))


@pytest.fixture(scope="module")
def starter() -> Path:
    if not (STARTER / "starter.json").exists():
        command = [sys.executable, "-m", "trainer", "warmup", "--out", str(STARTER)]
        subprocess.run(command, cwd=ROOT, check=True)
    return STARTER


def train(
    stack: Stack, starter: Path, num_viewers: int
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Each step's metrics, and the processor's seconds of Cohort's parts a step."""
    scene = stack.prepare_training(starter, num_steps=WARMUP + NUM_STEPS)
    crowd = stack.crowd(scene)
    if num_viewers:
        # Before the trainer starts: to come is not what is measured.
        crowd.ask("come", group="viewers", count=num_viewers, over=3)
    os.sched_setscheduler(crowd.process.pid, os.SCHED_IDLE, os.sched_param(0))
    show = stack.show(scene, None)
    parts = {**stack.pids(), "supervisor": [show.process.pid]}
    meter = Meter({**parts, "viewers": [crowd.process.pid]})
    used: dict[str, float] = {}
    while show.process.poll() is None:
        used = meter.seconds()
        try:
            show.process.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
    show.wait_for_the_end()
    if num_viewers:
        truth = stack.truth(scene)
        ended = crowd.ask("finish", group="viewers", truth=truth)
        assert ended["faults"] == []
    crowd.close()
    events = [json.loads(line) for line in show.events.read_bytes().splitlines()]
    steps = [e["metrics"] for e in events if e["type"] == "step_finished"]
    return steps[WARMUP:], {part: of / len(steps) for part, of in used.items()}


def test_watching_costs_training_nothing(starter: Path) -> None:
    ratios: list[list[float]] = []
    seconds: dict[int, list[float]] = {0: [], NUM_VIEWERS: []}
    used: dict[int, list[dict[str, float]]] = {0: [], NUM_VIEWERS: []}
    with running_stack() as stack:
        for pair in range(NUM_PAIRS):
            order = [0, NUM_VIEWERS] if pair % 2 == 0 else [NUM_VIEWERS, 0]
            found = {}
            for count in order:
                found[count], parts = train(stack, starter, count)
                seconds[count] += [step["time/step"] for step in found[count]]
                used[count].append(parts)
            ratios.append([])
            for alone, watched in zip(found[0], found[NUM_VIEWERS], strict=True):
                name = "sampling/num_tokens"
                assert alone[name] == watched[name], "not the same work"
                ratios[-1].append(watched["time/step"] / alone["time/step"])
            tell(f"pair {pair + 1}: {statistics.median(ratios[-1]):.3f}")
    of_pairs = [statistics.median(pair) for pair in ratios]
    of_steps = [ratio for pair in ratios for ratio in pair]
    rows = [
        [
            "seconds a step",
            spread(seconds[0], ".3f"),
            spread(seconds[NUM_VIEWERS], ".3f"),
        ],
        ["ratio, median of all steps", "1", f"{statistics.median(of_steps):.3f}"],
        ["ratio, medians of the pairs", "1", spread(of_pairs, ".3f")],
    ]
    rows += [
        [
            f"processor a step: {part}",
            mean_of(used[0], part),
            mean_of(used[NUM_VIEWERS], part),
        ]
        for part in used[0][0]
    ]
    title = f"{NUM_PAIRS} pairs of {NUM_STEPS} steps"
    say("\n" + heading("pytest", packages=("torch", "django", "uvicorn")))
    say(f"Load average {os.getloadavg()[0]:.1f} after.\n")
    say(table((title, "nobody watches", f"{NUM_VIEWERS} viewers"), rows))


def mean_of(used: list[dict[str, float]], part: str) -> str:
    return f"{1000 * statistics.mean(one[part] for one in used):.0f} ms"
