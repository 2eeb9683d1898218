"""A step's groups before the update, in memory and in a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from trainer.data import Prompt
from trainer.gathering import Gathered
from trainer.rewards.scoring import Score
from trainer.types import Group, Rollout, StepScore, Turn

_GROUPS = "groups.json"
_TOKENS = "tokens.safetensors"


@dataclass(frozen=True, kw_only=True)
class SampledBatch:
    """The groups of a step, and which weights they were sampled with."""

    step: int  # that trains on them
    own_prompts: frozenset[int]  # rows of the step's own prompts, without refills
    num_updates: int  # of the phase, that the weights had seen
    gathered: Gathered

    @property
    def groups(self) -> list[Group]:
        """Groups that are trained on, and those that are not."""
        return [*self.gathered.groups, *self.gathered.dropped]


def save_batch(folder: Path, batch: SampledBatch) -> None:
    """Write a batch into a new folder: tokens and log-probs, and all else as JSON."""
    folder.mkdir(parents=True)
    gathered = batch.gathered
    groups = batch.groups
    completions = [each for group in groups for each in group.completions]
    ids = chain.from_iterable(each.token_ids for each in completions)
    logprobs = chain.from_iterable(each.logprobs for each in completions)
    tensors = {
        "token_ids": torch.from_numpy(np.fromiter(ids, np.int64)),
        "logprobs": torch.from_numpy(np.fromiter(logprobs, np.float64)),
    }
    save_file(tensors, folder / _TOKENS)
    story = {
        "step": batch.step,
        "own_prompts": sorted(batch.own_prompts),
        "num_updates": batch.num_updates,
        "num_rounds": gathered.num_rounds,
        "num_sampled_tokens": gathered.num_sampled_tokens,
        "has_signal": gathered.has_signal,
        "scoring_seconds": gathered.scoring_seconds,
        "num_kept": len(gathered.groups),
        "groups": [
            {
                "prompt_index": group.prompt.index,
                "step_scores": group.step_scores,
                "completions": [
                    {
                        "turns": [
                            {
                                "author": turn.author,
                                "text": turn.text,
                                "num_tokens": len(turn.token_ids),
                                "is_sampled": turn.logprobs is not None,
                            }
                            for turn in completion.turns
                        ],
                        "end_reason": completion.end_reason,
                        "total": score.total,
                        "rules": score.rules,
                        "errors": score.errors,
                        "not_applicable": score.not_applicable,
                        "logs": score.logs,
                        "metrics": score.metrics,
                    }
                    for completion, score in zip(
                        group.completions, group.scores, strict=True
                    )
                ],
            }
            for group in groups
        ],
    }
    (folder / _GROUPS).write_text(json.dumps(story), encoding="utf-8")


def load_batch(folder: Path, prompts: Sequence[Prompt]) -> SampledBatch:
    """Return what `save_batch` wrote, of these prompts.

    Raises:
        ValueError: a prompt is not among them.
    """
    story = json.loads((folder / _GROUPS).read_bytes())
    tensors = load_file(folder / _TOKENS)
    ids = iter(tensors["token_ids"].tolist())
    logprobs = iter(tensors["logprobs"].tolist())
    rows = {prompt.index: prompt for prompt in prompts}
    groups = [
        _group_of(tree, rows, ids=ids, logprobs=logprobs) for tree in story["groups"]
    ]
    return SampledBatch(
        step=story["step"],
        own_prompts=frozenset(story["own_prompts"]),
        num_updates=story["num_updates"],
        gathered=Gathered(
            groups=groups[: story["num_kept"]],
            dropped=groups[story["num_kept"] :],
            num_rounds=story["num_rounds"],
            num_sampled_tokens=story["num_sampled_tokens"],
            has_signal=story["has_signal"],
            scoring_seconds=story["scoring_seconds"],
        ),
    )


def _group_of(
    tree: Mapping[str, Any],
    rows: Mapping[int, Prompt],
    *,
    ids: Iterator[int],
    logprobs: Iterator[float],
) -> Group:
    index, steps = tree["prompt_index"], tree["step_scores"]
    if index not in rows:
        raise ValueError(
            f"The checkpoint contains completions of row {index} (line {index + 1}), "
            "which is not a training row here. Resume with the rows and the "
            "configuration of the checkpoint."
        )
    return Group(
        prompt=rows[index],
        completions=tuple(
            Rollout(
                turns=tuple(
                    _turn_of(turn, ids=ids, logprobs=logprobs) for turn in each["turns"]
                ),
                end_reason=each["end_reason"],
            )
            for each in tree["completions"]
        ),
        scores=tuple(
            Score(
                each["total"],
                each["rules"],
                each["errors"],
                each.get("not_applicable", []),
                each.get("logs", {}),
                each.get("metrics", {}),
            )
            for each in tree["completions"]
        ),
        step_scores=None
        if steps is None
        else tuple(tuple(StepScore(*score) for score in each) for each in steps),
    )


def _turn_of(
    tree: Mapping[str, Any], *, ids: Iterator[int], logprobs: Iterator[float]
) -> Turn:
    count = tree["num_tokens"]
    values = tuple(islice(logprobs, count))
    return Turn(
        author=tree["author"],
        text=tree["text"],
        token_ids=tuple(islice(ids, count)),
        logprobs=values if tree["is_sampled"] else None,
    )
