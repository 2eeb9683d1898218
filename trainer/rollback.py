"""Going back to the last checkpoint when updates come out as no number."""

from __future__ import annotations

import torch

from trainer.errors import Diverged
from trainer.model.policy import Policy
from trainer.outcome import StepOutcome
from trainer.output.checkpoint import (
    restore_policy,
    saved_controllers,
    saved_step,
    verify_checkpoint,
)
from trainer.parallel.fsdp import spread_like
from trainer.recovery import FAILED_BATCH, save_failed_batch
from trainer.state import Training


def go_back(training: Training, outcome: StepOutcome) -> None:
    """Take weights and phase from the last checkpoint; steps and data go on.

    The learning rate is half of what it would have been from there on.

    So the log holds each step once, and the prompts that may be at fault come again
    only when their turn does. What the weights given up have sampled ahead goes with
    them. Without a checkpoint the run's start is where it goes.

    Raises:
        Diverged: it went back before.
    """
    limit = training.stage.config.optim.max_nonfinite
    if training.setbacks.num_rollbacks > 0:
        raise Diverged(_give_up(training, outcome, limit=limit))
    training.setbacks.roll_back()
    training.ahead.drop()
    stage, checkpoint = training.stage.stage, training.newest_checkpoint
    name = "the starting model" if checkpoint is None else checkpoint.name
    if checkpoint is not None:
        verify_checkpoint(checkpoint)
    is_within = checkpoint is not None and saved_step(checkpoint) >= stage.first_step
    restored = restore_policy(training.config.model, checkpoint)
    _copy_weights(restored, training.policy)
    del restored
    training.enter(stage, saved=checkpoint if is_within else None)
    if checkpoint is not None and is_within:
        training.stage.load_state(saved_controllers(checkpoint)["phase"])
    training.sync_weights()
    training.journal.warn(
        "rolled_back",
        f"{limit} updates in a row had a loss or gradient that was not finite. The "
        f"weights are those of {name} again; steps and prompts go on, at "
        f"{training.setbacks.rate_factor:g} of the learning rate. If it happens once "
        "more, the run fails. Lower the learning rate, or set optim.max_grad_norm.",
        value=float(limit),
    )
    training.log.flush()


def _copy_weights(source: Policy, target: Policy) -> None:
    """In place, since the rollout engine holds the target."""
    weights = dict(source.model.named_parameters())
    with torch.no_grad():
        for name, weight in target.model.named_parameters():
            if weight.requires_grad:
                weight.copy_(spread_like(weight, weights[name]))


def _give_up(training: Training, outcome: StepOutcome, *, limit: int) -> str:
    folder = training.out / FAILED_BATCH
    save_failed_batch(
        folder,
        step=training.journal.step,
        groups=outcome.gathered.groups,
        minibatches=outcome.minibatches,
        updates=outcome.updates,
        rank=training.world.rank,
    )
    return (
        f"{limit} updates in a row had a loss or gradient that was not finite, for "
        f"the second time in this run. The batch is in {folder}. Lower the learning "
        "rate, set optim.max_grad_norm, or look for extreme rewards in that batch."
    )
