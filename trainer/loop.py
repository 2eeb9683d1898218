"""The GRPO loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from trainer.batch import MicroBatch, batch_of, set_advantages
from trainer.checkpoint import prune_checkpoints, save_checkpoint
from trainer.config import RunConfig
from trainer.credit import credit_groups
from trainer.evaluation import evaluate
from trainer.events import CheckpointSaved, Evaluated
from trainer.groups import score_groups
from trainer.journal import Journal
from trainer.kl import kl_estimate
from trainer.log import EventLog
from trainer.metrics import Stopwatch
from trainer.optimization import Optimizer, learning_rate
from trainer.policy import Policy
from trainer.prompts import DataOrder, Prompt
from trainer.reference import Reference
from trainer.rollout.engine import Request, RolloutEngine, SamplingParams
from trainer.seeding import derive
from trainer.updates import update

HELD_OUT = "heldout"


@dataclass(kw_only=True)
class Training:
    """All that a run holds while it trains."""

    config: RunConfig
    policy: Policy
    reference: Reference | None
    engine: RolloutEngine
    optimizer: Optimizer
    train_prompts: Sequence[Prompt]
    eval_prompts: Sequence[Prompt]
    order: DataOrder
    log: EventLog
    checkpoints: Path
    epoch: int

    def __post_init__(self) -> None:
        self.journal = Journal(self.log, self.config)


def train(
    training: Training, *, done_steps: int, should_stop: Callable[[], bool]
) -> str | None:
    """Run the steps after `done_steps`; returns the name of the last checkpoint.

    What a step means is in the log before its checkpoint exists: its groups and
    metrics, then its evaluation. A resumed run owes nothing to the past.
    """
    config = training.config
    step, saved = done_steps, None
    if step == 0 and not should_stop():
        run_evaluation(training, step=0)
    while step < config.optim.num_steps and not should_stop():
        step += 1
        train_step(training, step=step)
        is_last = step == config.optim.num_steps
        if is_last or _is_due(step, config.evaluation.every_steps):
            run_evaluation(training, step=step)
        if is_last or should_stop() or _is_due(step, config.checkpoint.every_steps):
            saved = write_checkpoint(training, step=step)
    return saved


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def train_step(training: Training, *, step: int) -> None:
    """Sample groups, score them, compare within each, update the policy."""
    config, temperature = training.config, training.config.rollout.temperature
    recipe = config.reward.recipe
    watch = Stopwatch()

    prompts = [training.train_prompts[place] for place in training.order.places(step)]
    with watch.phase("generate"):
        completions = training.engine.sample(
            sampling_requests(prompts, config, step=step), sampling_params(config)
        )
    with watch.phase("score"):
        groups = score_groups(recipe, prompts, completions)

    batch = batch_of(groups)
    micro_batches = batch.micro_batches(
        max_tokens=config.optim.micro_batch_tokens, device=training.policy.device
    )
    if training.reference is not None:
        with watch.phase("logprobs"):
            training.reference.add_logprobs(micro_batches, temperature=temperature)

    penalties = None
    if config.loss.kl_in == "reward" and config.loss.kl_coef > 0:
        penalties = kl_penalties(micro_batches, config, shape=(len(prompts), -1))
    advantages = credit_groups(groups, config, penalties=penalties).advantages
    set_advantages(micro_batches, advantages)

    rate = learning_rate(step, config.optim)
    with watch.phase("update"):
        updates = [
            update(
                training.policy,
                training.optimizer,
                micro_batches,
                totals=batch.totals,
                config=config,
                learning_rate=rate,
            )
            for _ in range(config.optim.updates_per_batch)
        ]
        if training.reference is not None:
            training.reference.after_step(step, training.policy)
    with watch.phase("sync"):
        training.engine.sync_weights()

    metrics = training.journal.record_step(
        step,
        groups=groups,
        advantages=advantages,
        updates=updates,
        learning_rate=rate,
        watch=watch,
    )
    say(
        f"step {step}/{config.optim.num_steps}  "
        f"reward {_shown(metrics['reward/mean'])}  "
        f"length {_shown(metrics['completion/mean_length'])}  "
        f"{_shown(metrics['time/step'])} s"
    )


def sampling_params(config: RunConfig) -> SamplingParams:
    rollout = config.rollout
    return SamplingParams(
        max_new_tokens=rollout.max_new_tokens,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
    )


def sampling_requests(
    prompts: Sequence[Prompt], config: RunConfig, *, step: int
) -> list[Request]:
    """G completions of each prompt, each with a seed of its own."""
    return [
        Request(
            prompt=prompt,
            seeds=tuple(
                derive(config.seed, "sample", step, prompt.index, k)
                for k in range(config.rollout.group_size)
            ),
        )
        for prompt in prompts
    ]


def kl_penalties(
    micro_batches: Sequence[MicroBatch], config: RunConfig, *, shape: tuple[int, int]
) -> torch.Tensor:
    """What KL in the reward takes off each completion: kl_coef · Σ_t KL_t; [P, G]."""
    loss = config.loss
    penalties = torch.zeros(
        sum(len(micro.members) for micro in micro_batches), dtype=torch.float64
    )
    for micro in micro_batches:
        assert micro.reference_logprobs is not None
        kl = kl_estimate(
            micro.sampling_logprobs,
            micro.reference_logprobs,
            loss.kl_estimator,
            loss.kl_clamp,
        )
        total = torch.where(micro.completion_mask > 0, kl, 0.0).sum(dim=1)
        total = total.double().cpu()
        penalties[micro.members] = loss.kl_coef * total
    return penalties.view(shape)


def run_evaluation(training: Training, *, step: int) -> None:
    """Evaluate on the held-out prompts, where there are any and it is asked for."""
    config = training.config.evaluation
    if not training.eval_prompts or config.every_steps == 0:
        return
    metrics = evaluate(
        training.engine, training.eval_prompts, training.config, name=HELD_OUT
    )
    training.log.add(
        Evaluated,
        step=step,
        name=HELD_OUT,
        num_prompts=len(training.eval_prompts),
        samples_per_prompt=config.samples_per_prompt,
        metrics=metrics,
    )
    training.log.flush()
    say(
        f"held out after step {step}: reward {_shown(metrics[f'eval/{HELD_OUT}/mean'])}"
    )


def write_checkpoint(training: Training, *, step: int) -> str:
    """Save the run as it is after a step, and drop what is older than asked for."""
    saved = save_checkpoint(
        training.checkpoints,
        step=step,
        epoch=training.epoch,
        policy=training.policy,
        optimizer=training.optimizer,
        reference=training.reference,
    )
    training.log.add(
        CheckpointSaved,
        step=step,
        name=saved.name,
        sha256=saved.sha256,
        num_bytes=saved.num_bytes,
    )
    training.log.flush()
    prune_checkpoints(
        training.checkpoints,
        keep_last=training.config.checkpoint.keep_last,
        step=step,
        epoch=training.epoch,
    )
    say(f"saved {saved.name}")
    return saved.name


def say(text: str) -> None:
    """A line for whoever reads the trainer's output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
