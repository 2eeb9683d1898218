"""How fast events become rows: python tests/bench/bench_ingest.py [SECONDS].

Each case ingests logs as a supervisor does, from bytes to commit, in one process, into
a throw-away PostgreSQL of its own with its default durability.
"""

import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.database import throwaway_database
from tests.bench.machine import heading, say, table

TEXT = "Let us try 3 * 4 = 12, then 12 + 5 = 17, which is not 24. " * 12
NUM_METRICS = 40


def main(seconds: float) -> None:
    logging.disable(logging.WARNING)  # no one is there to be rung for
    with throwaway_database():
        measure(seconds)


def measure(seconds: float) -> None:
    groups = repeat(group_log, seconds=seconds)
    steps = repeat(step_log, seconds=seconds)
    rows = [
        groups.row(f"completions, 256 of {len(TEXT)} characters a step", each=256),
        steps.row(f"metric values, {NUM_METRICS} a step", each=NUM_METRICS),
    ]
    say(heading("tests.bench.bench_ingest", packages=("django", "psycopg")))
    say(f"{seconds:g} s each; load average {os.getloadavg()[0]:.1f} after.\n")
    names = ("what is stored", "a second", "steps a second", "steps a commit")
    say(table((*names, "commit, p50", "p99", "slowest"), rows))


@dataclass(frozen=True, kw_only=True)
class Stored:
    """How many steps, and how long each commit of some of them took."""

    num_steps: int
    seconds: list[float]

    def row(self, what: str, *, each: int) -> list[str]:
        rate = self.num_steps / sum(self.seconds)
        ordered = sorted(self.seconds)
        quantiles = [ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99)]
        return [
            what,
            f"{rate * each:,.0f}",
            f"{rate:,.1f}",
            f"{self.num_steps / len(ordered):,.0f}",
            *(f"{1_000 * value:,.1f} ms" for value in (*quantiles, ordered[-1])),
        ]


def repeat(make_log: Callable[[int], list[bytes]], *, seconds: float) -> Stored:
    """For so many seconds; making the log is not counted."""
    from dashboard.supervision.event_log import Lines, read_events
    from dashboard.supervision.ingest import ingest

    claim = claimed_run()
    line, done = 1, 0
    spent: list[float] = []
    while sum(spent) < seconds:
        texts = tuple(make_log(line))
        before = time.perf_counter()
        lines = Lines(first=line, texts=texts, end=0)
        ingest(claim, read_events(lines, attempt=claim.attempt))
        spent.append(time.perf_counter() - before)
        line += len(texts)
        done += 1 if make_log is group_log else len(texts)
    return Stored(num_steps=done, seconds=spent)


def group_log(line: int) -> list[bytes]:
    """One step of 16 prompts with 16 completions each."""
    from trainer.events import Event, GroupScored, ScoredCompletion, StepFinished

    completions = [
        ScoredCompletion(
            text=f"{TEXT}{place}",
            num_tokens=200,
            end_reason="stop",
            reward=0.1 * place,
            rules={"answer": 1.0, "format": 0.5, "length": -0.2},
            advantage=0.123456789 * place,
            mean_logprob=-1.23456789,
        )
        for place in range(16)
    ]
    times = dict.fromkeys(("generate", "score", "logprobs", "update", "step"), 1.5)
    events: list[Event] = [
        GroupScored(
            line=line + index,
            attempt=1,
            time=1.7e9,
            step=line,
            prompt_index=index,
            prompt=TEXT[:300],
            answer="24",
            reward_mean=0.5,
            reward_std=0.1,
            signal="mixed",
            completions=completions,
        )
        for index in range(16)
    ]
    metrics = {f"time/{name}": seconds for name, seconds in times.items()}
    events.append(
        StepFinished(line=line + 16, attempt=1, time=1.7e9, step=line, metrics=metrics)
    )
    return [event.model_dump_json().encode() for event in events]


def step_log(line: int) -> list[bytes]:
    """As many steps as one batch of the follower may hold when it has fallen behind."""
    from trainer.events import StepFinished

    metrics = {f"part/metric_{n:02d}": 0.123456789012 * n for n in range(NUM_METRICS)}
    events = (
        StepFinished(line=n, attempt=1, time=1.7e9, step=n, metrics=metrics)
        for n in range(line, line + 2_000)
    )
    return [event.model_dump_json().encode() for event in events]


def claimed_run() -> object:
    from dashboard.accounts.models import Team, User
    from dashboard.supervision.lease import claim_run
    from tests.dashboard.supervision.factories import Launcher

    name = f"bench-{Team.objects.count()}"
    team = Team.objects.create(slug=name, name=name)
    run = Launcher(team, User.objects.create_user(name))()
    return claim_run(run.id, "bench")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
