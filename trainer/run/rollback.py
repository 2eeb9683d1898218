"""Going back to the last checkpoint when updates come out as no number."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from trainer.errors import Diverged
from trainer.model.microbatches import Minibatch
from trainer.model.policy import Policy
from trainer.output.checkpoint import (
    restore_policy,
    saved_controllers,
    saved_step,
    verify_checkpoint,
)
from trainer.parallel.fsdp import spread_like
from trainer.run.outcome import StepOutcome, UpdateResult
from trainer.run.state import Run, RunState, enter_phase, sync_weights
from trainer.types import Group

FAILED_BATCH = "failed-batch"


def roll_back(run: Run, state: RunState, outcome: StepOutcome) -> None:
    """Take weights and phase from the last checkpoint; steps and data go on.

    The learning rate is half of what it would have been from there on.

    So the log holds each step once, and the prompts that may be at fault come again
    only when their turn does. What the weights given up have sampled ahead goes with
    them. Without a checkpoint the run's start is where it goes.

    Raises:
        Diverged: it went back before.
    """
    limit = state.phase.config.optim.max_nonfinite
    if state.setbacks.num_rollbacks > 0:
        folder = run.paths.out / FAILED_BATCH
        save_failed_batch(
            folder,
            step=run.journal.step,
            groups=outcome.gathered.groups,
            minibatches=outcome.minibatches,
            updates=outcome.updates,
            rank=run.world.rank,
        )
        raise Diverged(
            f"{limit} updates in a row had a non-finite loss or gradient, for the "
            f"second time in this run. The batch is in {folder}: check it for extreme "
            "rewards, lower the learning rate, or set optim.max_grad_norm."
        )
    state.setbacks.roll_back()
    run.prefetch.drop()
    phase, checkpoint = state.phase.phase_config, state.newest_checkpoint
    name = "the starting model" if checkpoint is None else checkpoint.name
    if checkpoint is not None:
        verify_checkpoint(checkpoint)
    is_within = checkpoint is not None and saved_step(checkpoint) >= phase.first_step
    restored = restore_policy(state.config.model, checkpoint)
    _copy_weights(restored, run.policy)
    del restored
    enter_phase(run, state, phase, saved=checkpoint if is_within else None)
    if checkpoint is not None and is_within:
        state.phase.load_state_dict(saved_controllers(checkpoint)["phase"])
    sync_weights(run, state.phase)
    run.journal.warn(
        "rolled_back",
        f"{limit} updates in a row had a non-finite loss or gradient, so the run "
        f"restored the weights of {name} and continues at "
        f"{state.setbacks.rate_factor:g} of the learning rate. If it happens again, "
        "the run fails; lower the learning rate, or set optim.max_grad_norm.",
        value=float(limit),
    )
    run.log.flush()


def _copy_weights(source: Policy, target: Policy) -> None:
    """Copy in place, since the rollout engine holds the target."""
    weights = dict(source.model.named_parameters())
    with torch.no_grad():
        for name, weight in target.model.named_parameters():
            if weight.requires_grad:
                weight.copy_(spread_like(weight, weights[name]))


def save_failed_batch(
    folder: Path,
    *,
    step: int,
    groups: Sequence[Group],
    minibatches: Sequence[Minibatch],
    updates: Sequence[UpdateResult],
    rank: int = 0,
) -> None:
    """Write the tensors, texts and rewards of a step whose updates were not finite.

    tensors.safetensors has each micro-batch's as minibatch.micro_batch.name, and of a
    further process tensors-RANK.safetensors has its own; batch.json has the texts,
    rewards and what the updates came to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{index}.{part}.{name}": value.detach().cpu().contiguous().clone()
        for index, minibatch in enumerate(minibatches)
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
