"""The learning rate over the steps of a run or of a phase."""

from __future__ import annotations

import math

from trainer.config.training import OptimConfig


def learning_rate(step: int, config: OptimConfig) -> float:
    """Learning rate of a step, steps counted from 1.

    It rises over the W warm-up steps as step/(W+1), is the peak at step W+1 and then
    follows the schedule to peak · final_lr_fraction at the last step.
    """
    assert step >= 1
    warmup, last = config.warmup_steps, config.num_steps
    if step <= warmup:
        return config.learning_rate * step / (warmup + 1)
    span = last - warmup - 1
    progress = min((step - warmup - 1) / span, 1.0) if span > 0 else 0.0
    match config.schedule:
        case "constant":
            share = 1.0
        case "linear":
            share = 1.0 - progress
        case "cosine":
            share = (1 + math.cos(math.pi * progress)) / 2
    floor = 1.0 if config.schedule == "constant" else config.final_lr_fraction
    return config.learning_rate * (floor + (1 - floor) * share)
