"""verl, NeMo-RL and ms-swift: a line has a sample, or lists of samples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

from cohort.formats.files import Format, Part, Rollout, read_lines, tree_of
from cohort.lines import (
    Completion,
    Turn,
    answer_of,
    guess_turns,
    number,
    rule_name,
    text_of,
)

# Columns that are no scores.
_NO_RULES_OF_VERL = {"input", "output", "gts", "score", "step"}
_NO_RULES_OF_MS_SWIFT = {
    "step",
    "gen_step",
    "prompt",
    "completion",
    "reward",
    "advantages",
    "entropy",
    "kl",
    "num_turns",
    "solution",
}


class Verl(Format):
    """verl: `trainer.rollout_data_dir` has `<step>.jsonl` (`_dump_generations`).

    A line has input, output, gts, score, step, and the reward function's extra values.
    Metrics come from verl's file logger (`trainer.logger=["console","file"]`,
    `VERL_FILE_LOGGER_PATH`): lines of `{"step", "data"}`.
    """

    name = tool = "verl"
    step_name = re.compile(r"(\d{1,9})\.jsonl")
    keys = frozenset({"input", "output"})
    rules: ClassVar = {"score": 1.0}

    def rollouts(self, tree: dict[str, Any], part: Part) -> Sequence[Rollout]:
        if not isinstance(tree["input"], str | list):
            raise TypeError("input is neither text nor messages")
        # The score is the reward; other numbers are further rules.
        score = number(tree.get("score"))
        others = {
            name: number(value)
            for name, value in tree.items()
            if name not in _NO_RULES_OF_VERL and isinstance(value, int | float)
        }
        text = text_of(tree["output"])
        completion = Completion(
            text=text,
            turns=guess_turns(text),
            reward=score,
            rules={"score": score} | others,
        )
        prompt, answer = text_of(tree["input"]), answer_of(tree.get("gts"))
        return [Rollout(prompt=prompt, completion=completion, answer=answer)]

    def metrics_of(self, tree: dict[str, Any]) -> dict[str, Any]:
        data = tree.get("data")
        return data if isinstance(data, dict) else {}


class NemoRl(Format):
    """NeMo-RL: `train_data_step<step>.jsonl` in the experiment's log folder.

    `Logger.log_batched_dict_as_jsonl` writes a line a sample, each value as a batch of
    one: content (texts of the messages, without roles), rewards, token_loss_mask (1 on
    sampled tokens), input_lengths, advantages by token. `idx` is the line's number.
    """

    name = "nemo-rl"
    tool = "NeMo-RL"
    step_name = re.compile(r"train_data_step(\d{1,9})\.jsonl")
    keys = frozenset({"content", "rewards", "idx"})

    def rollouts(self, tree: dict[str, Any], part: Part) -> Sequence[Rollout]:
        texts = [text_of(text) for text in tree["content"][0]]
        (length,) = tree["input_lengths"]
        mask = tree["token_loss_mask"][0][:length]
        # Roles are not written. From the first sampled token on, policy and environment
        # take turns; a message each.
        runs = [bool(is_sampled) for is_sampled, _ in groupby(mask)]
        first = len(texts) - len(runs[runs.index(True) :])
        if first < 1:
            raise ValueError("there are fewer messages than turns")
        said = texts[first:]
        turns = [
            Turn(author="environment" if i % 2 else "policy", text=text)
            for i, text in enumerate(said)
        ]
        # With dynamic sampling, `rewards` has those of prompts left out, too.
        (reward,) = tree.get("filtered_rewards") or tree["rewards"]
        completion = Completion(
            text=said[0] if len(said) == 1 else "",
            turns=turns if len(said) > 1 else (),
            reward=number(reward),
            advantage=number(tree["advantages"][0][mask.index(1)]),
            num_tokens=sum(map(bool, mask)),
        )
        return [Rollout(prompt="".join(texts[:first]), completion=completion)]


class MsSwift(Format):
    """ms-swift: `completions.jsonl` in the output folder, by `--log_completions true`.

    GRPOTrainer writes a table a line: step, prompt, completion, advantages and a list
    for each reward function. It holds one generation batch, so `--logging_steps 1` is
    needed. At the end, and after an evaluation, a table of a step repeats; the first
    one counts. Megatron's trainers call the step gen_step and count it from 0; with Ray
    a line is a single completion with its reward.
    """

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
            if name not in _NO_RULES_OF_MS_SWIFT and isinstance(values, list)
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
