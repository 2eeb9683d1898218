"""What watching costs training: `pytest -m load -s tests/load/bench_step_time.py`.

The starter model trains twice with one seed, so that a step does the same work in both.
In turns of some steps no one watches, then all viewers do, the other way round in the
second run: a step's times are compared with one another, and what makes one whole run
slower than the other cancels out. Steps during which viewers come or leave are not
counted. Viewers live on other machines: here their process is SCHED_IDLE, and runs when
nothing else wants to. COHORT_LOAD_VIEWERS, COHORT_LOAD_TURNS of COHORT_LOAD_STEPS
steps, of COHORT_LOAD_PROMPTS prompts each.
"""

import json
import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import pytest

from tests.bench.machine import heading, say, spread, table, tell
from tests.load.stack import ROOT, Crowd, Meter, Show, Stack, running_stack

pytestmark = pytest.mark.load
NUM_VIEWERS = int(os.environ.get("COHORT_LOAD_VIEWERS", "200"))
NUM_TURNS = int(os.environ.get("COHORT_LOAD_TURNS", "16"))
NUM_STEPS = int(os.environ.get("COHORT_LOAD_STEPS", "12"))
NUM_PROMPTS = int(os.environ.get("COHORT_LOAD_PROMPTS", "16"))
STARTER = ROOT / "trainer" / "starter" / "countdown"
ALONE, WATCHED = False, True


@dataclass
class Training:
    """By whether it was watched: the steps that count, and the processor's seconds."""

    counted: dict[bool, list[int]] = field(
        default_factory=lambda: {ALONE: [], WATCHED: []}
    )
    used: dict[bool, Counter[str]] = field(
        default_factory=lambda: {ALONE: Counter(), WATCHED: Counter()}
    )
    steps: list[dict[str, float]] = field(default_factory=list)  # their metrics


class Finished:
    """How many steps a run has finished; its log is read once."""

    def __init__(self, show: Show, log: BinaryIO) -> None:
        self._show, self._log = show, log
        self._count = 0

    def count(self) -> int:
        self._count += sum(b'"step_finished"' in line for line in self._log)
        return self._count

    def wait_for(self, count: int) -> None:
        while self.count() < count:
            assert self._show.process.poll() is None, "the run ended early"
            time.sleep(0.05)


def bring(crowd: Crowd, turn: bool) -> None:
    pid = crowd.process.pid
    os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
    if turn is WATCHED:
        crowd.ask("come", group="viewers", count=NUM_VIEWERS, over=2)
    else:
        crowd.ask("leave", group="viewers")
    os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


def train(stack: Stack, first: bool) -> Training:
    scene = stack.prepare_training(
        STARTER, num_steps=NUM_TURNS * NUM_STEPS + 2, num_prompts=NUM_PROMPTS
    )
    crowd = stack.crowd(scene)
    show = stack.show(scene, None)
    found = Training()
    with show.events.open("rb") as log:
        finished = Finished(show, log)
        for number in range(NUM_TURNS):
            turn = first if number % 2 == 0 else not first
            bring(crowd, turn)
            # The step in which they came is not counted, and of a run not its first.
            begin = finished.count() + (1 if number else 3)
            finished.wait_for(begin)
            parts = {"viewers": [crowd.process.pid], "supervisor": [show.process.pid]}
            meter = Meter({**stack.pids(), **parts})
            end = (number + 1) * NUM_STEPS
            finished.wait_for(end)
            found.used[turn].update(meter.seconds())
            found.counted[turn] += range(begin, end)
    crowd.close()
    show.wait_for_end()
    events = [json.loads(line) for line in show.events.read_bytes().splitlines()]
    found.steps = [e["metrics"] for e in events if e["type"] == "step_finished"]
    return found


def ratios_of(watched: Training, alone: Training) -> list[float]:
    """Of the times of the steps that were watched in the one and not in the other."""
    found = []
    for place in set(watched.counted[WATCHED]) & set(alone.counted[ALONE]):
        one, other = watched.steps[place], alone.steps[place]
        name = "sampling/num_tokens"
        assert one[name] == other[name], "not the same work"
        found.append(one["time/step"] / other["time/step"])
    return found


def mean_ratio(halves: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """The geometric mean of the halves' geometric means, and its 95 % interval."""
    logs = [[math.log(ratio) for ratio in half] for half in halves]
    mean = statistics.mean(map(statistics.mean, logs))
    variance = sum(statistics.variance(half) / len(half) for half in logs)
    error = math.sqrt(variance) / len(logs)
    low, high = mean - 1.96 * error, mean + 1.96 * error
    return math.exp(mean), math.exp(low), math.exp(high)


def seconds_of(trainings: Sequence[Training], turn: bool) -> str:
    times = [t.steps[at]["time/step"] for t in trainings for at in t.counted[turn]]
    return spread(times, ".3f")


def milliseconds_of(trainings: Sequence[Training], turn: bool, part: str) -> str:
    """Of the processor, a step."""
    num_steps = sum(len(training.counted[turn]) for training in trainings)
    seconds = sum(training.used[turn][part] for training in trainings)
    return f"{1000 * seconds / num_steps:.0f} ms"


def test_watching_costs_training_nothing():
    with running_stack() as stack:
        both = []
        for first in (ALONE, WATCHED):
            both.append(train(stack, first))
            tell(f"trained {len(both)} of 2 times")
    one, other = both
    halves = [ratios_of(one, other), ratios_of(other, one)]
    mean, low, high = mean_ratio(halves)
    num_pairs = sum(map(len, halves))
    rows = [
        ["seconds a step", seconds_of(both, ALONE), seconds_of(both, WATCHED)],
        [
            f"ratio of {num_pairs} steps, 95 %",
            "1",
            f"{mean:.3f} ({low:.3f}–{high:.3f})",
        ],
    ]
    rows += [
        [
            f"processor a step: {part}",
            milliseconds_of(both, ALONE, part),
            milliseconds_of(both, WATCHED, part),
        ]
        for part in sorted(one.used[ALONE])
    ]
    title = f"{NUM_PROMPTS} prompts a step"
    say("\n" + heading("pytest", packages=("torch", "django", "uvicorn")))
    say(f"Load average {os.getloadavg()[0]:.1f} after.\n")
    say(table((title, "no one watches", f"{NUM_VIEWERS} viewers"), rows))
