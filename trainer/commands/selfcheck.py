"""`python -m trainer drift`: compares log-probs of the rollout engine and the trainer.

The learning rate is 0, so differences come from number formats, kernels, a temperature
on one side only, or an inexact transfer of weights.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from trainer.algorithm.token_stats import percentile
from trainer.config import LossConfig, RunConfig, read_config, require_packages
from trainer.console import print_line
from trainer.data import Prompt, read_rows, split_rows
from trainer.errors import explain
from trainer.grpo import add_gradients, apply_gradients
from trainer.model.budget import MemoryBudget
from trainer.model.optimizer import Optimizer
from trainer.model.packing import batch_of
from trainer.model.policy import Policy, load_policy
from trainer.rewards.scoring import Score
from trainer.rollout.engine import (
    LogprobsDiffer,
    RolloutEngine,
    Slowed,
    largest_gap,
)
from trainer.rollout.episodes import make_renderer, make_sampler
from trainer.rollout.select import make_engine
from trainer.run.outcome import LossTerms
from trainer.run.phases import data_order
from trainer.run.setup import set_up_torch
from trainer.types import Group, Rollout

EXIT_AGREES, EXIT_DRIFTS, EXIT_BAD_CONFIG = 0, 1, 2
GROWTH = 3.0  # of the first step's mean, once above a tenth of the limit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="run configuration, TOML or JSON")
    parser.add_argument(
        "--steps", type=int, default=5, help="number of steps to compare (default: 5)"
    )
    parser.add_argument(
        "--limit", type=float, help="largest mean difference that passes, in nats"
    )


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """|log π_trainer - log π_engine| over a step's sampled tokens, in nats."""

    mean: float
    p99: float
    max: float
    num_tokens: int

    @classmethod
    def of(cls, differences: torch.Tensor) -> Gaps:
        sizes = differences.abs().double()
        return cls(
            mean=sizes.mean().item(),
            p99=percentile(sizes, 0.99),
            max=sizes.max().item(),
            num_tokens=sizes.numel(),
        )


def main(args: argparse.Namespace) -> int:
    """Print each step's differences and what they mean."""
    try:
        config = read_config(args.config)
        if args.steps < 1:
            raise ValueError(f"--steps must be at least 1; got {args.steps}.")
        require_packages(config)
        set_up_torch(config)
        policy = load_policy(config.model)
        policy.fix_longest(config.longest_sequence)
        engine = make_engine(config, policy, on_slowed=_tell)
        rows, _ = split_rows(
            read_rows(args.config.parent / config.data.rows),
            num_eval_rows=config.data.num_eval_rows,
            seed=config.seed,
        )
        renderer = make_renderer(
            policy.tokenizer, config.data, config.environment, seed=config.seed
        )
        prompts = [renderer.render(row) for row in rows]
        gaps = measure(config, policy, engine, prompts, num_steps=args.steps)
    except ValueError as error:
        sys.stderr.write(f"{explain(error)}\n")
        return EXIT_BAD_CONFIG
    limit = largest_gap(policy) if args.limit is None else args.limit
    complaint = verdict(gaps, limit=limit)
    print_line(
        complaint or f"ok: the mean stays within {limit:g} nats and does not grow"
    )
    return EXIT_AGREES if complaint is None else EXIT_DRIFTS


def _tell(slowed: Slowed) -> None:
    print_line(f"{slowed.failed} failed ({slowed.reason}); {slowed.way} samples")


def measure(
    config: RunConfig,
    policy: Policy,
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    *,
    num_steps: int,
) -> list[Gaps]:
    """Steps with a learning rate of 0, each with its differences printed."""
    phase = config.phase_configs[0]
    # Log-probs are those of sampling, if all agrees.
    rollout = phase.config.rollout.model_copy(update={"logprob_temperature": None})
    config = phase.config.model_copy(update={"loss": LossConfig(), "rollout": rollout})
    order = data_order(phase, num_rows=len(prompts))
    source, optimizer = make_sampler(engine, config), Optimizer(policy, config.optim)
    budget = MemoryBudget(
        config.optim.micro_batch_tokens,
        on_halved=lambda tokens, _: print_line(
            f"memory ran out: {tokens} tokens at once"
        ),
    )
    gaps = []
    for step in range(1, num_steps + 1):
        chosen = [prompts[index] for index in order.places(step)]
        try:
            completions = source.complete(chosen, step)
        except LogprobsDiffer as error:  # of the engine's own check, which is done once
            print_line(str(error))
            completions = source.complete(chosen, step)
        batch = batch_of(_unscored(chosen, completions))
        engine.rest()
        minibatch = budget.cut(batch, policy)
        minibatch.set_advantages(np.ones(len(batch.samples)))
        terms = LossTerms(config, batch.totals)
        gradients = budget.run(
            minibatch,
            lambda micros, terms=terms: add_gradients(  # type: ignore[misc]
                policy, optimizer, micros, terms
            ),
        )
        result = apply_gradients(optimizer, gradients, batch.totals, learning_rate=0.0)
        with suppress(LogprobsDiffer):  # which is measured in the next step
            source.sync_weights()
        assert result.statistics.mismatch is not None
        gaps.append(Gaps.of(result.statistics.mismatch))
        print_line(
            f"step {step}  {gaps[-1].num_tokens} tokens  mean {gaps[-1].mean:.3g}  "
            f"p99 {gaps[-1].p99:.3g}  max {gaps[-1].max:.3g} nats"
        )
    return gaps


def verdict(gaps: Sequence[Gaps], *, limit: float) -> str | None:
    """Return what is wrong, with what to do about it; None when nothing is."""
    worst = max(gap.mean for gap in gaps)
    if not worst <= limit:
        return (
            f"drift: the mean difference is {worst:.2g} nats per token, above "
            f'{limit:g}. Set model.dtype to "float32", or set '
            "loss.importance_correction."
        )
    if gaps[-1].mean > max(GROWTH * gaps[0].mean, limit / 10):
        return (
            f"drift: the mean difference grew from {gaps[0].mean:.2g} to "
            f"{gaps[-1].mean:.2g} nats although no weight changed. The engine's copy "
            "degrades with each weight sync."
        )
    return None


def _unscored(
    prompts: Sequence[Prompt], completions: Sequence[tuple[Rollout, ...]]
) -> list[Group]:
    """Groups without rewards: what tokens are worth does not matter here."""
    return [
        Group(
            prompt=prompt,
            completions=members,
            scores=tuple(Score(None, {}, {}) for _ in members),
        )
        for prompt, members in zip(prompts, completions, strict=True)
    ]
