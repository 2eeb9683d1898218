"""What reporting to Cohort costs TRL's training, step by step.

    python -m tests.bench.bench_reporting --model .cohort/bench/starter/model

Three processes train the same with TRL's GRPOTrainer and take turns, a step each: two
are not watched, one is, by `trainer.client.trl.watch`; what it reports is taken by a
server in a process of its own on this machine. The two that are not watched differ by
noise alone, which is what the ratio of the watched one has to be read against. On cores
with other work that noise is larger than what is looked for, so the bound is counted:
processor time of the watcher's calls, which the trainer waits for, and of its two
threads, which it does not but which may keep it from a core or from Python's lock, as a
share of what the step itself computes, were that spread over all cores. None of these
three grows with what else runs on the machine as a step's seconds do.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.bench.apart import Apart, Give, take_turns
from tests.bench.machine import heading, say, table
from tests.bench.theirs import their_steps, what_is_missing
from tests.bench.work import Step, Work, write_rows
from tests.client.server import TakesAll, serve
from trainer.client.http import Server
from trainer.client.trl import Watcher, watch

HEADER = (
    "prompts × G, new tokens",
    "step, s",
    "not watched twice: ratio",
    "watched: ratio",
    "its calls, ms a step",
    "of them computed",
    "its threads computed, ms",
    "the step computed, ms",
    "at most, of the step",
    "lines stored",
)
LOOKS = (
    "_generated",
    "_scored",
    "on_step_begin",
    "on_step_end",
    "on_log",
)


def watched_steps(
    give: Give, work: Work, *, micro_batches: int, url: str, folder: str
) -> None:
    def attach(trainer: Any) -> Callable[[], dict[str, float]]:
        spent = _time_calls(Watcher)
        watch(trainer, folder=folder, server=Server(url, "bench"))
        return lambda: {
            "calls": spent[0],
            "computed": spent[1],
            "threads": _thread_seconds(),
            "process": time.process_time(),
        }

    their_steps(give, work, micro_batches=micro_batches, attach=attach)


def _time_calls(watcher: Any) -> list[float]:
    """In the watcher's calls, added up: seconds, and of processor time."""
    spent = [0.0, 0.0]

    def timed(look: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any, **options: Any) -> None:
            begin, computed = time.perf_counter(), time.thread_time()
            look(*args, **options)
            spent[0] += time.perf_counter() - begin
            spent[1] += time.thread_time() - computed

        return call

    for name in LOOKS:
        setattr(watcher, name, timed(getattr(watcher, name)))
    return spent


def _thread_seconds() -> float:
    """Processor time of the reporter's threads since they began."""
    own = [t for t in threading.enumerate() if t.name.startswith("cohort-")]
    clocks = [time.pthread_getcpuclockid(t.ident) for t in own if t.ident]
    return sum(map(time.clock_gettime, clocks))


def _serve(pipe: Connection) -> None:
    takes = TakesAll()
    with serve(takes) as server:
        pipe.send(server.url)
        pipe.recv()
        pipe.send(len(takes.events))


def measure(work: Work, *, num_steps: int, micro_batches: int) -> list[str]:
    spawn = get_context("spawn")
    pipe, far = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(far,), daemon=True)
    process.start()
    url = pipe.recv()
    with tempfile.TemporaryDirectory() as folder:
        sides = [
            Apart(their_steps, work, micro_batches=micro_batches),
            Apart(
                watched_steps,
                work,
                micro_batches=micro_batches,
                url=url,
                folder=f"{folder}/run",
            ),
            Apart(their_steps, work, micro_batches=micro_batches),
        ]
        with sides[0], sides[1], sides[2]:
            for side in sides:
                side.wait_until_ready()
            taken = take_turns(sides, name=work.name, num_steps=num_steps, warmup=2)
    pipe.send(None)
    return _row(work, taken, pipe.recv())


def _row(work: Work, taken: Sequence[Sequence[Step]], num_lines: int) -> list[str]:
    first, watched, second = ([step.seconds for step in steps] for steps in taken)
    step = statistics.median(first)
    names = ("calls", "computed", "threads", "process")
    calls, computed, threads, process = (_each(taken[1], name) for name in names)
    own = computed + threads
    share = own / ((process - own) / (os.cpu_count() or 1))
    return [
        f"{work.num_prompts} × {work.group_size}, {work.max_new_tokens}",
        f"{step:.2f}",
        _ratios(second, first),
        _ratios(watched, first),
        f"{1_000 * calls:.2f}",
        f"{1_000 * computed:.2f}",
        f"{1_000 * threads:.1f}",
        f"{1_000 * process:,.0f}",
        f"{100 * share:.2f} %",
        f"{num_lines:,}",
    ]


def _each(steps: Sequence[Step], phase: str) -> float:
    """Of one step, as the phase has added up over all."""
    spent = [step.phases[phase] for step in steps]
    return (spent[-1] - spent[0]) / (len(spent) - 1)


def _ratios(mine: Sequence[float], its: Sequence[float]) -> str:
    ratios = sorted(a / b for a, b in zip(mine, its, strict=True))
    low, high = ratios[0], ratios[-1]
    return f"{statistics.median(ratios):.3f} ({low:.2f}–{high:.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    if without := what_is_missing():
        raise SystemExit(without)
    with tempfile.TemporaryDirectory() as name:
        rows = write_rows(args.model, Path(name))
        work = Work(
            model=args.model,
            rows=rows,
            num_prompts=args.prompts,
            group_size=args.group,
            max_new_tokens=args.new,
        )
        row = measure(work, num_steps=args.steps, micro_batches=args.micro_batches)
    say(heading("tests.bench.bench_reporting"))
    say(table(HEADER, [row]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--micro-batches", type=int, default=1)
    return parser


if __name__ == "__main__":
    main()
