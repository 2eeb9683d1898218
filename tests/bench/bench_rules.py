"""How long rules take for a completion, here and in another checkout.

`python -m tests.bench.bench_rules [--beside DIR]`: rules that run in this process, on
groups of 16 completions of 1,200 characters with thinking. Microseconds of processor
time for a completion; with `--beside` the two take turns, each in a new process, and
the ratio is the median of the pairs.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.bench.machine import say
from trainer.rewards.rule import Sample
from trainer.rewards.rules import RULES
from trainer.rewards.scoring import score_all
from trainer.rewards.spec import Recipe, RuleSpec

TURNS = 5
GROUP = 16
THINKING = (
    "The train leaves at nine and needs two hours, so it arrives at eleven. " * 16
)
THOUGHT = f"<think>\n{THINKING}\n</think>\n<answer>42</answer>"
COMPLETIONS = {
    "marker_answer": f"{THINKING}\n#### 42",
    "multiple_choice": f"{THINKING}\n<answer>B</answer>",
}
COLUMNS = {
    "numbers": [40, 2],
    "nums": [40, 2],
    "target": 42,
    "options": ["Lyon", "Paris", "Nice", "Lille"],
}


def measure() -> dict[str, float]:
    """Microseconds for a completion, by rule: the fastest of nine rounds."""
    found = {}
    for kind, rule in RULES.items():
        if rule.is_slow or rule.batching is not None or rule.check is not None:
            continue
        params: dict[str, Any] = dict(rule.example_pass.params or {})
        recipe = Recipe(rules=(RuleSpec(name="it", kind=kind, params=params),))
        text = COMPLETIONS.get(kind, THOUGHT)
        answer = "B" if kind == "multiple_choice" else "42"
        group = [Sample("40 + 2?", text, answer, COLUMNS)] * GROUP
        found[kind] = 1e6 * _seconds(recipe, group) / GROUP
    return found


def _seconds(recipe: Recipe, group: list[Sample]) -> float:
    """Of the processor, for a group."""
    begin = time.process_time()
    score_all(recipe, group)
    num_calls = max(1, int(0.02 / max(time.process_time() - begin, 1e-6)))
    rounds = []
    for _ in range(9):
        begin = time.process_time()
        for _ in range(num_calls):
            score_all(recipe, group)
        rounds.append((time.process_time() - begin) / num_calls)
    return min(rounds)


def _in_checkout(folder: Path) -> dict[str, float]:
    """By this file, but with the other checkout's rules."""
    command = [sys.executable, str(Path(__file__).resolve()), "--as-json"]
    environment = {"PYTHONPATH": str(folder.resolve())}
    done = subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True
    )
    read: dict[str, float] = json.loads(done.stdout)
    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=Path, help="another checkout of Cohort")
    parser.add_argument("--as-json", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_json:
        say(json.dumps(measure()))
        return
    if args.beside is None:
        for kind, microseconds in measure().items():
            say(f"{kind:20} {microseconds:8.1f} µs")
        return
    here = Path(__file__).parents[2]
    pairs = [(_in_checkout(args.beside), _in_checkout(here)) for _ in range(TURNS)]
    for kind in pairs[0][1]:
        if kind not in pairs[0][0]:
            continue
        theirs, ours = zip(*((one[kind], two[kind]) for one, two in pairs), strict=True)
        ratio = statistics.median(b / a for a, b in zip(theirs, ours, strict=True))
        say(
            f"{kind:20} {statistics.median(theirs):8.1f} {statistics.median(ours):8.1f}"
            f" µs  {ratio:.2f}"
        )


if __name__ == "__main__":
    main()
