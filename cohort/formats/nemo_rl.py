"""NeMo-RL: `train_data_step<step>.jsonl` in the experiment's log folder.

`Logger.log_batched_dict_as_jsonl` writes a line a sample, each value as a batch of one:
content (texts of the messages, without roles), rewards, token_loss_mask (1 on sampled
tokens), input_lengths, advantages by token. `idx` is the line's number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from cohort.formats.files import Format, Part, Rollout
from cohort.lines import Completion, Turn, number, text_of


class NemoRl(Format):
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
