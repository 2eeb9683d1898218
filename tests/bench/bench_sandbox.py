"""How many reward functions, tools and tested completions a sandbox runs in a second.

`python -m tests.bench.bench_sandbox`: one sandbox, one call after the other, at each
level that this machine has. Seconds of processors count as well as seconds of the
clock, since other work may hold the clock up.
"""

import argparse
import resource
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.machine import machine, say
from trainer.rewards.sandbox.levels import LEVELS, Level, obstacle
from trainer.rewards.sandbox.limits import Limits
from trainer.rewards.sandbox.slot import Slot

FUNCTION = {
    "source": "def reward(completion, answer):\n    return answer in completion",
    "arguments": {"completion": "a word " * 200, "answer": "word"},
}
TOOL = {
    "source": "def add(a: int, b: int) -> int:\n    return a + b",
    "function": "add",
    "arguments": {"a": 1, "b": 2},
    "seed": 0,
    "max_chars": 1_000,
}
CLASS = {
    "source": "class Game:\n    def reset(self):\n        self.texts = []\n"
    "    def step(self, text):\n        self.texts.append(text)\n        return text",
    "class": "Game",
    "row": {},
    "seed": 0,
    "said": [{"content": "a word"}] * 30,
    "max_chars": 1_000,
}
CODE = [
    {"source": "def add(a, b):\n    return a + b"},
    *[{"code": f"add({n}, 1)", "is_value": True} for n in range(5)],
]


@dataclass(frozen=True, kw_only=True)
class Measured:
    start_seconds: float
    calls_per_second: float
    cpu_milliseconds: float  # of all processes, for a call


def measure(level: Level, kind: str, questions: list[Any], num_calls: int) -> Measured:
    begin = time.perf_counter()
    slot = Slot(level)
    started = time.perf_counter()
    slot.ask(kind, questions, Limits())
    rates, cpu = [], []
    for _ in range(5):
        before, at = _cpu_seconds(slot.pid), time.perf_counter()
        for _ in range(num_calls // 5):
            answer = slot.ask(kind, questions, Limits())
            assert answer.code == 0, answer
        rates.append(num_calls // 5 / (time.perf_counter() - at))
        cpu.append((_cpu_seconds(slot.pid) - before) / (num_calls // 5))
    slot.end()
    return Measured(
        start_seconds=started - begin,
        calls_per_second=statistics.median(rates),
        cpu_milliseconds=1_000 * statistics.median(cpu),
    )


def _cpu_seconds(pid: int) -> float:
    """Of this process, the sandbox, and the calls that it has waited for."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime + sum(map(_ticks, [pid, *_below(pid)])) / 100


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15]))


def _below(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000)
    args = parser.parse_args()
    say(machine())
    say("| level | call | start, s | calls a second | processor, ms a call |")
    say("|---|---|---|---|---|")
    for level in LEVELS:
        if (reason := obstacle(level)) is not None:
            say(f"| {level} | {reason} | | | |")
            continue
        for name, kind, questions in (
            ("a function", "function", [FUNCTION]),
            ("a tool", "tool", [TOOL]),
            ("a class, 30 turns", "environment", [CLASS]),
            ("code, 5 tests", "steps", CODE),
        ):
            found = measure(level, kind, questions, args.calls)
            say(
                f"| {level} | {name} | {found.start_seconds:.2f} "
                f"| {found.calls_per_second:.0f} | {found.cpu_milliseconds:.2f} |"
            )


if __name__ == "__main__":
    main()
