"""verl: `trainer.rollout_data_dir` has `<step>.jsonl` (`_dump_generations`).

A line has input, output, gts, score, step, and the reward function's extra values.
Metrics come from verl's file logger (`trainer.logger=["console","file"]`,
`VERL_FILE_LOGGER_PATH`): lines of `{"step", "data"}`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from cohort.formats.files import Format, Part, Rollout
from cohort.lines import Completion, answer_of, guess_turns, number, text_of

_OWN = {"input", "output", "gts", "score", "step"}


class Verl(Format):
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
            if name not in _OWN and isinstance(value, int | float)
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
