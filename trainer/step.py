"""One step of training, as the composition of its parts."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from trainer.algorithm.advantages import Floats
from trainer.algorithm.credit import credit_groups
from trainer.algorithm.kl import kl_estimate
from trainer.algorithm.loss import compares_with_the_old_policy
from trainer.config import LossConfig, learning_rate
from trainer.errors import check_scores
from trainer.gathering import Gathered, gather
from trainer.model.microbatches import Minibatch, completion_sums, in_batch_order
from trainer.model.packing import MicroBatch, batch_of
from trainer.outcome import StepOutcome, UpdateResult
from trainer.output.journal import choose_groups, places_of
from trainer.output.metrics import Stopwatch
from trainer.output.saved_batch import SampledBatch
from trainer.parallel.world import World
from trainer.preference import credit_preferences
from trainer.state import Training
from trainer.types import reward_matrix
from trainer.updates import add_gradients, add_old_logprobs, apply_gradients


def train_step(training: Training, *, step: int, watch: Stopwatch) -> StepOutcome:
    """Gather groups, credit their completions, update the policy.

    One step off, the groups were gathered during the step before, by the weights which
    that one began with; and the next step's are gathered while these are trained on.

    Raises:
        ScoresMissing: too many of the step's scores failed; nothing has changed yet.
    """
    batch = training.ahead.take(step)
    if batch is None:
        batch = sample_batch(training, step, watch=watch, world=training.world)
    # before the next step is sampled, and while nothing has changed yet
    check_scores(
        batch.groups, limit=training.stage.config.reward.max_error_share, step=step
    )
    if not training.stage.samples_ahead(step):
        training.engine.rest()
        return train_on(training, batch, watch=watch)
    beside = training.world.beside
    with training.ahead.beside(
        lambda own: sample_batch(training, step + 1, watch=own, world=beside),
        watch=watch,
    ):
        return train_on(training, batch, watch=watch)


def sample_batch(
    training: Training, step: int, *, watch: Stopwatch, world: World
) -> SampledBatch:
    """Gather the groups of a step with the weights that the engine has."""
    stage = training.stage
    own = stage.prompts(training.train_prompts, step=step, round=0)
    return SampledBatch(
        step=step,
        own_prompts=frozenset(prompt.index for prompt in own),
        num_updates=stage.num_updates,
        gathered=gather(
            stage.source,
            lambda round: (
                stage.prompts(training.train_prompts, step=step, round=round)
                if round
                else own
            ),
            stage.config,
            step=step,
            watch=watch,
            world=world,
            scorer=training.scorer,
        ),
    )


def train_on(
    training: Training, batch: SampledBatch, *, watch: Stopwatch
) -> StepOutcome:
    """Credit a batch's completions and update the policy."""
    stage, config, gathered = training.stage, training.stage.config, batch.gathered
    age = stage.num_updates - batch.num_updates
    minibatches = cut_batch(training, gathered)
    with watch.phase("logprobs"):
        add_known_logprobs(training, minibatches)
    rate = learning_rate(stage.place(batch.step), config.optim)
    rate *= training.setbacks.rate_factor
    kl_coef = stage.kl_coef
    detailed = choose_groups(gathered.groups, config, step=batch.step)
    places = places_of(gathered.groups, detailed)
    kept = frozenset(chain.from_iterable(places))
    with watch.phase("update"):
        if config.advantage.credit == "preference":
            rewards = reward_matrix(gathered.groups)
            advantages, updates = prefer(
                training, minibatches, rewards, rate=rate, kept=kept
            )
        else:
            advantages = give_credit(training, gathered, minibatches, step=batch.step)
            updates = [
                run_update(training, minibatch, rate=rate, kept=() if number else kept)
                for number in range(config.optim.updates_per_batch)
                for minibatch in minibatches
            ]
    tokens = ChainMap(*(dict(result.tokens) for result in updates))
    return StepOutcome(
        gathered=gathered,
        minibatches=minibatches,
        own_prompts=batch.own_prompts,
        advantages=advantages,
        updates=updates,
        learning_rate=rate,
        kl_coef=kl_coef if config.loss.kl_coef > 0 else None,
        staleness=stage.staleness(len(updates), age=age),
        is_on_policy=config.rollout.source == "policy" and age == 0,
        is_one_off=config.rollout.source == "policy" and age > 0,
        tokens={
            group: [tokens[place] for place in own]
            for group, own in zip(detailed, places, strict=True)
        },
    )


def cut_batch(training: Training, gathered: Gathered) -> list[Minibatch]:
    """The parts of a batch that each make one update, cut to what memory bears."""
    config = training.stage.config
    batch = batch_of(gathered.groups, config.loss)
    return [
        Minibatch(
            part,
            max_tokens=training.budget.tokens,
            device=training.policy.device,
            world=training.world,
        )
        for part in batch.minibatches(config.optim.minibatches)
    ]


def add_known_logprobs(training: Training, minibatches: Sequence[Minibatch]) -> None:
    """The reference's log-probs, and old ones where an update comes before them.

    The first minibatch's first pass runs with the policy that the ratio compares with,
    so it brings its own; without another minibatch no separate pass is needed.
    """
    reference, policy = training.stage.reference, training.policy
    config = training.stage.config
    temperature = config.logprob_temperature
    is_preference = config.advantage.credit == "preference"
    # a KL over the whole vocabulary asks for more, in each update
    if reference is not None and (config.loss.kl_estimator != "full" or is_preference):
        for minibatch in minibatches:
            training.budget.run(
                minibatch,
                lambda micros: reference.add_logprobs(micros, temperature=temperature),
            )
    if compares_with_the_old_policy(config.loss):
        for minibatch in minibatches[1:]:
            training.budget.run(
                minibatch,
                lambda micros: add_old_logprobs(
                    policy, micros, temperature=temperature
                ),
            )


def give_credit(
    training: Training,
    gathered: Gathered,
    minibatches: Sequence[Minibatch],
    *,
    step: int,
) -> Floats:
    """Set the batch's advantages; [P, G] for the log."""
    stage = training.stage
    loss, penalties = stage.config.loss, None
    if loss.kl_in == "reward" and loss.kl_coef > 0:
        own: dict[int, float] = {}
        for minibatch in minibatches:
            own |= completion_kl(minibatch.micro_batches, loss)
        sums = in_batch_order(training.world, own)
        penalties = stage.kl_coef * sums.reshape(len(gathered.groups), -1)
    credit = credit_groups(
        gathered.groups, stage.config, step=step, penalties=penalties
    )
    for minibatch in minibatches:
        minibatch.set_advantages(
            credit.advantages if credit.tokens is None else credit.tokens
        )
    return credit.advantages


def completion_kl(
    micro_batches: Sequence[MicroBatch], loss: LossConfig
) -> dict[int, float]:
    """Σ_t KL_t of each completion as it was sampled, by its place in the batch."""
    values = []
    for micro in micro_batches:
        assert micro.reference_logprobs is not None
        values.append(
            kl_estimate(
                micro.sampling_logprobs,
                micro.reference_logprobs,
                loss.kl_estimator,
                loss.kl_clamp,
            )
        )
    return completion_sums(micro_batches, values)


def run_update(
    training: Training,
    minibatch: Minibatch,
    *,
    rate: float,
    kept: Collection[int] = (),
) -> UpdateResult:
    """One update by a minibatch, done again with less at once if memory runs out.

    Of the completions at the places `kept` of the step's batch token values are kept.
    """
    training.ahead.check()  # an update may take long, and would be in vain
    stage, totals = training.stage, minibatch.batch.totals
    found = training.budget.run(
        minibatch,
        lambda micros: add_gradients(
            training.policy,
            stage.optimizer,
            micros,
            totals=totals,
            config=stage.config,
            kl_coef=stage.kl_coef,
            reference=stage.reference,
            kept=minibatch.batch.places.intersection(kept),
        ),
    )
    return apply_gradients(
        stage.optimizer,
        found,
        num_sequences=totals.num_sequences,
        learning_rate=rate,
        world=training.world,
    )


def prefer(
    training: Training,
    minibatches: Sequence[Minibatch],
    rewards: Floats,
    *,
    rate: float,
    kept: Collection[int] = (),
) -> tuple[Floats, list[UpdateResult]]:
    """Updates by DPO, whose loss is told in place of its surrogate's.

    The advantages [P, G] are those of the first pass; later ones differ a little.
    """
    config = training.stage.config
    advantages, updates = np.zeros_like(rewards), []
    for number in range(config.optim.updates_per_batch):
        for minibatch in minibatches:
            weighed, loss = credit_preferences(
                minibatch,
                rewards,
                policy=training.policy,
                temperature=config.logprob_temperature,
                beta=config.advantage.preference_beta,
                budget=training.budget,
                world=training.world,
            )
            if number == 0:
                advantages = advantages + weighed
            result = run_update(
                training, minibatch, rate=rate, kept=() if number else kept
            )
            updates.append(replace(result, loss=loss))
    return advantages, updates
