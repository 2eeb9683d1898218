"""ms-swift: `completions.jsonl` in the output folder, by `--log_completions true`.

GRPOTrainer writes a table a line: step, prompt, completion, advantages and a list for
each reward function. It holds one generation batch, so `--logging_steps 1` is needed.
At the end, and after an evaluation, a table of a step repeats; the first one counts.
Megatron's trainers call the step gen_step and count it from 0; with Ray a line is a
single completion with its reward.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cohort.formats.files import Format, Part, Rollout, read_lines, tree_of
from cohort.lines import Completion, number, rule_name, text_of

_OWN = {"step", "gen_step", "prompt", "completion", "reward", "advantages"}
_NO_RULES = _OWN | {"entropy", "kl", "num_turns", "solution"}


class MsSwift(Format):
    name = tool = "ms-swift"
    keys = frozenset({"prompt", "completion"})
    settings_path = "args.json"
    metrics_path = "logging.jsonl"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path = folder / "completions.jsonl"
        self._parts: dict[int, Part] = {}
        self._start = self._end = 0  # of what is read, and in no part yet
        self._step = 0  # of the last line
        self._table: dict[str, Any] = {}  # the last one, without its step
        # In the order of the reward functions' columns.
        self._weights: list[float] = self.settings().get("reward_weights") or []

    def parts(self, after: int) -> dict[int, Part]:
        """Read what was written since the last call. A lower step than before begins
        what a restarted trainer repeats.
        """
        size = self._path.stat().st_size if self._path.exists() else self._end
        if size < self._end:  # a new file
            self._parts, self._start, self._end, self._step = {}, 0, 0, 0
        for line in read_lines(Part(path=self._path, start=self._end, end=size)):
            if not line.endswith(b"\n"):
                break
            self._end += len(line)
            tree = tree_of(line)
            if (step := _step(tree)) is not None:  # else the next part has a bad line
                self._add(step, tree)
                self._start = self._end
        return dict(self._parts)

    def _add(self, step: int, tree: dict[str, Any]) -> None:
        is_first, is_table = step != self._step, isinstance(tree.get("prompt"), list)
        if step < 1 or (is_table and not is_first):
            return
        values = {name: tree[name] for name in tree if name not in ("step", "gen_step")}
        start = self._start if is_first else self._parts[step].start
        if is_first and values == self._table:
            start = self._end  # they were sampled for an earlier step
        self._parts[step] = Part(path=self._path, start=start, end=self._end)
        self._step, self._table = step, values

    def rollouts(self, tree: dict[str, Any], part: Part) -> Sequence[Rollout]:
        if not isinstance(tree["prompt"], list):
            tree = {name: [value] for name, value in tree.items()}
        rules = {
            rule_name(name): [
                number(value) if isinstance(value, int | float) else None
                for value in values
            ]
            for name, values in tree.items()
            if name not in _NO_RULES and isinstance(values, list)
        }
        rules = {n: s for n, s in rules.items() if any(v is not None for v in s)}
        columns = zip(tree["prompt"], tree["completion"], strict=True)
        return [
            Rollout(
                prompt=text_of(prompt),
                completion=Completion(
                    text=text_of(completion),
                    reward=self._reward(tree, scores, at),
                    rules=scores,
                    advantage=_at(tree.get("advantages"), at),
                ),
            )
            for at, (prompt, completion) in enumerate(columns)
            for scores in [{n: values[at] for n, values in rules.items()}]
        ]

    def _reward(
        self, tree: dict[str, Any], scores: dict[str, float | None], at: int
    ) -> float | None:
        if "reward" in tree:
            return _at(tree["reward"], at)
        weights = self._weights or [1.0] * len(scores)
        pairs = zip(weights, scores.values(), strict=False)
        parts = [weight * score for weight, score in pairs if score is not None]
        return sum(parts) if parts else None

    def metrics_step(self, tree: dict[str, Any]) -> int:
        """Return n of "n/m"."""
        match = re.match(r"(\d{1,9})/", str(tree.get("global_step/max_steps", "")))
        return int(match[1]) if match else 0


def _step(tree: dict[str, Any]) -> int | None:
    for name, first in (("step", 1), ("gen_step", 0)):
        value = tree.get(name)
        if isinstance(value, list):
            value = value[0] if value else None
        if isinstance(value, int | str) and re.fullmatch(r"\d{1,9}", str(value)):
            return int(value) + 1 - first
    return None


def _at(values: Any, at: int) -> float | None:
    return number(values[at]) if isinstance(values, list) and at < len(values) else None
