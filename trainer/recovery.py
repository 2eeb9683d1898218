"""Updates that came out as no number: when to go back, and when to give up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from trainer.model.microbatches import Minibatch
from trainer.outcome import UpdateResult
from trainer.types import Group

FAILED_BATCH = "failed-batch"
ROLLED_BACK_RATE = 0.5  # of the learning rate, once a run went back


class Setbacks:
    """Counts skipped updates in a row, and how often they sent the run back."""

    def __init__(self) -> None:
        self.num_skipped = 0  # in a row, the last update included
        self.num_rollbacks = 0

    def count(self, updates: Sequence[UpdateResult], *, limit: int) -> bool:
        """Take in a step's updates; whether `limit` in a row were skipped."""
        is_over = False
        for result in updates:
            self.num_skipped = self.num_skipped + 1 if result.is_skipped else 0
            is_over = is_over or self.num_skipped >= limit
        return is_over

    def roll_back(self) -> None:
        self.num_skipped = 0
        self.num_rollbacks += 1

    @property
    def rate_factor(self) -> float:
        """What the learning rate is multiplied by."""
        return ROLLED_BACK_RATE**self.num_rollbacks

    def state(self) -> dict[str, int]:
        return {"num_skipped": self.num_skipped, "num_rollbacks": self.num_rollbacks}

    def load_state(self, state: Mapping[str, int]) -> None:
        self.num_skipped = state["num_skipped"]
        self.num_rollbacks = state["num_rollbacks"]


def save_failed_batch(
    folder: Path,
    *,
    step: int,
    groups: Sequence[Group],
    minibatches: Sequence[Minibatch],
    updates: Sequence[UpdateResult],
    rank: int = 0,
) -> None:
    """Write all that went into a step's updates, for whoever looks for the cause.

    tensors.safetensors has each micro-batch's as minibatch.micro_batch.name, and of a
    further process tensors-RANK.safetensors has its own; batch.json has the texts,
    rewards and what the updates came to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{place}.{part}.{name}": value.detach().cpu().contiguous().clone()
        for place, minibatch in enumerate(minibatches)
        for part, micro in enumerate(minibatch.micro_batches)
        for name, value in vars(micro).items()
        if isinstance(value, torch.Tensor)
    }
    suffix = f"-{rank}" if rank else ""
    save_file(tensors, folder / f"tensors{suffix}.safetensors")
    if rank:
        return
    story = {
        "step": step,
        "updates": [
            {
                "loss": str(u.loss),
                "grad_norm": str(u.grad_norm),
                "skipped": u.is_skipped,
            }
            for u in updates
        ],
        "members": [
            [micro.members for micro in minibatch.micro_batches]
            for minibatch in minibatches
        ],
        "groups": [
            {
                "prompt_index": group.prompt.index,
                "prompt": group.prompt.text,
                "completions": [
                    {
                        "text": completion.text,
                        "token_ids": completion.token_ids,
                        "end_reason": completion.end_reason,
                        "reward": score.total,
                    }
                    for completion, score in zip(
                        group.completions, group.scores, strict=True
                    )
                ],
            }
            for group in groups
        ],
    }
    (folder / "batch.json").write_text(
        json.dumps(story, indent=2, ensure_ascii=False), encoding="utf-8"
    )
