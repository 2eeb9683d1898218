"""GRPO: one step, from sampling to the update.

    sample       G completions of each of P prompts, and score them
    log-probs    of the reference, and of the old policy if several updates follow
    advantages   of each reward within its group
    loss         clipped ratio times advantage, and a KL (arXiv:2402.03300)
    update       gradients over micro-batches, then one optimizer step

`algorithm` has the formulas, `model` the forward and backward passes, which
`model.budget` repeats when out of memory, and `parallel` the communication.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain

import torch

from trainer.algorithm.advantages import Floats
from trainer.algorithm.credit import credit_groups
from trainer.algorithm.entropy import choose_by_covariance, high_entropy
from trainer.algorithm.kl import kl_estimate
from trainer.algorithm.loss import BatchTotals, compares_with_the_old_policy, objective
from trainer.algorithm.token_stats import TokenStatistics
from trainer.config import learning_rate
from trainer.dpo import update_by_preferences
from trainer.errors import check_scores
from trainer.gathering import SampledBatch, gather
from trainer.host import tick
from trainer.model.microbatches import (
    Minibatch,
    completion_sums,
    in_batch_order,
)
from trainer.model.optimizer import Optimizer
from trainer.model.packing import MicroBatch, batch_of
from trainer.model.policy import Policy
from trainer.model.reference import BaseReference
from trainer.model.token_values import (
    TokenValues,
    gaps_of_all,
    rows_of,
    token_values,
    tokens_of_all,
)
from trainer.output.journal import choose_groups, places_of
from trainer.output.metrics import Stopwatch
from trainer.parallel.world import ALONE, World
from trainer.privileged import reference_prompts
from trainer.run.outcome import LossTerms, Pass, StepOutcome, UpdateResult
from trainer.run.phases import PhaseState
from trainer.run.state import Run, RunState, choose_sizes, sample_kl
from trainer.seeding import derive


def train_step(
    run: Run, state: RunState, *, step: int, watch: Stopwatch
) -> StepOutcome:
    """Sample a batch and train on it.

    With one_step_off, the batch was sampled during the previous step, with the weights
    at its start, and the next batch is sampled while this one is trained on.

    Raises:
        ScoresMissing: too many of the step's scores failed; nothing has changed yet.
    """
    phase, batch = state.phase, run.prefetch.take(step)
    if batch is None:
        batch = sample_batch(run, phase, step, watch, world=run.world)
    # before the next step is sampled, and while nothing has changed yet
    limit = phase.config.reward.max_error_share
    check_scores(batch.gathered.sampled, limit=limit, step=step)
    meanwhile: AbstractContextManager[None] = nullcontext()
    if phase.samples_ahead(step):
        ahead = partial(sample_batch, run, phase, step + 1, world=run.world.beside)
        meanwhile = run.prefetch.beside(ahead, watch=watch)
    else:
        run.engine.rest()
    fit_to_memory(run, state)
    with meanwhile:
        return train_on(run, state, batch, watch=watch)


def sample_batch(
    run: Run, phase: PhaseState, step: int, watch: Stopwatch, *, world: World
) -> SampledBatch:
    """Scored groups of a step; dynamic sampling may ask for further prompts."""
    drawn = phase.draw(step)
    prompts_of_round = partial(phase.prompts, run.prompts.train, step, drawn=drawn)
    return SampledBatch(
        step=step,
        drawn=drawn,
        own_prompts=frozenset(prompt.index for prompt in prompts_of_round(0)),
        num_updates=phase.num_updates,
        gathered=gather(
            phase.source,
            prompts_of_round,
            phase.config,
            step=step,
            watch=watch,
            world=world,
            scorer=run.scorer,
        ),
    )


def fit_to_memory(run: Run, state: RunState) -> None:
    """Choose, before a phase's first update, what goes through a GPU at once."""
    optimizer = state.phase.optimizer
    terms = state.phase.loss_terms(BatchTotals(num_tokens=1, num_sequences=1))
    work = partial(add_gradients, run.policy, optimizer, terms=terms)
    choose_sizes(run, state, work)


def train_on(
    run: Run, state: RunState, batch: SampledBatch, *, watch: Stopwatch
) -> StepOutcome:
    """Return log-probs, advantages and updates of a batch."""
    phase, config, gathered = state.phase, state.phase.config, batch.gathered
    age = phase.age_of(batch)
    reads = reference_prompts(
        gathered.groups,
        run.renderer,
        config,
        num_positions=run.policy.num_positions,
    )
    whole = batch_of(gathered.groups, config.loss, reference_prompts=reads)
    parts = whole.minibatches(config.optim.minibatches)
    minibatches = [state.budget.cut(part, run.policy) for part in parts]
    with watch.phase("logprobs"):
        add_logprobs(run, state, minibatches, watch=watch)
        sample_kl(run, state, minibatches, step=batch.step)
    rate = learning_rate(phase.place(batch.step), config.optim)
    rate *= state.setbacks.rate_factor
    # Of a few groups each token's values are kept, for people to look at.
    detailed = choose_groups(gathered.groups, config, step=batch.step)
    places = places_of(gathered.groups, detailed)
    kept_places = frozenset(chain.from_iterable(places))

    def update_by(minibatch: Minibatch, number: int) -> UpdateResult:
        if config.loss.covariance is not None:
            update = number * len(minibatches) + minibatches.index(minibatch)
            choice = partial(
                choose_by_covariance,
                config=config.loss,
                seed=derive(config.seed, "covariance", batch.step, update),
            )
            minibatch.choose("chosen", choice, "advantages", "sampling_logprobs")
        return run_update(
            run, state, minibatch, rate=rate, kept=() if number else kept_places
        )

    with watch.phase("update"):
        if config.advantage.credit == "preference":
            advantages, updates = update_by_preferences(
                run, state, gathered.groups, minibatches, update_by
            )
        else:
            advantages = give_advantages(run, phase, batch, minibatches)
            updates = [
                update_by(minibatch, number)
                for number in range(config.optim.updates_per_batch)
                for minibatch in minibatches
            ]
        mismatch = None
        if config.measures_mismatch:
            is_of_one = config.incomparable != "temperature"
            mismatch = gaps_of_all(minibatches if is_of_one else (), run.world)
    tokens = ChainMap(*(dict(result.tokens) for result in updates))
    is_policys = config.rollout.source == "policy"
    return StepOutcome(
        gathered=gathered,
        minibatches=minibatches,
        own_prompts=batch.own_prompts,
        drawn=batch.drawn,
        advantages=advantages,
        updates=updates,
        learning_rate=rate,
        kl_coef=phase.kl_coef if config.loss.kl_coef > 0 else None,
        entropy_coef=phase.entropy_coef,
        age=age,
        # the n-th of a step's updates trains on what is n - 1 updates older
        staleness=None if age is None else age + (len(updates) - 1) / 2,
        is_on_policy=is_policys and age == 0,
        is_one_off=is_policys and age != 0,
        mismatch=mismatch,
        tokens={
            group: [tokens[index] for index in own]
            for group, own in zip(detailed, places, strict=True)
        },
    )


def add_logprobs(
    run: Run, state: RunState, minibatches: Sequence[Minibatch], *, watch: Stopwatch
) -> None:
    """Log-probs of the reference, and old log-probs if an update precedes their use.

    The first pass of the first minibatch uses the old policy itself, so its log-probs
    serve; with a single minibatch no separate pass is needed. To keep tokens by their
    entropy under the old policy, each minibatch has one.
    """
    reference, policy, config = state.phase.reference, run.policy, state.phase.config
    temperature, share = config.logprob_temperature, config.loss.top_entropy_share

    def add_old(micro_batches: Sequence[MicroBatch], *, is_compared: bool) -> None:
        with torch.no_grad():
            for micro in micro_batches:
                tick()
                logprobs, entropy = policy.logprobs(micro, temperature=temperature)
                micro.entropy = entropy if share < 1 else None
                if is_compared:
                    micro.old_logprobs = logprobs

    is_preference = config.advantage.credit == "preference"
    # a KL over the whole vocabulary asks for more, in each update
    if reference is not None and (config.loss.kl_estimator != "full" or is_preference):
        add_reference = partial(reference.add_logprobs, temperature=temperature)
        with watch.phase("reference"):
            for minibatch in minibatches:
                state.budget.run(minibatch, add_reference)
    for number, minibatch in enumerate(minibatches):
        is_compared = number > 0 and compares_with_the_old_policy(config.loss)
        if is_compared or share < 1:
            state.budget.run(minibatch, partial(add_old, is_compared=is_compared))
        if share < 1:
            minibatch.choose("kept", partial(high_entropy, share=share), "entropy")


def give_advantages(
    run: Run, phase: PhaseState, batch: SampledBatch, minibatches: Sequence[Minibatch]
) -> Floats:
    """Set the batch's advantages; [P, G] for the log.

    With the KL in the reward, β·Σ_t KL_t is taken off a completion's reward first.
    """
    groups, loss, penalties = batch.gathered.groups, phase.config.loss, None
    if loss.kl_in == "reward" and loss.kl_coef > 0:
        own: dict[int, float] = {}
        for minibatch in minibatches:
            values = []
            for micro in minibatch.micro_batches:
                assert micro.reference_logprobs is not None
                pair = micro.sampling_logprobs, micro.reference_logprobs
                values.append(kl_estimate(*pair, loss.kl_estimator, loss.kl_clamp))
            own |= completion_sums(minibatch.micro_batches, values)
        sums = in_batch_order(run.world, own)
        penalties = phase.kl_coef * sums.reshape(len(groups), -1)
    credit = credit_groups(groups, phase.config, step=batch.step, penalties=penalties)
    advantages = credit.advantages if credit.tokens is None else credit.tokens
    for minibatch in minibatches:
        minibatch.set_advantages(advantages)
    return credit.advantages


def run_update(
    run: Run,
    state: RunState,
    minibatch: Minibatch,
    *,
    rate: float,
    kept: Collection[int] = (),
) -> UpdateResult:
    """Return one update by a minibatch, done again with less at once if memory runs
    out.

    Of the completions at the places `kept` of the step's batch token values are kept.
    """
    run.prefetch.check()  # an update may take long, and would be lost
    batch, optimizer = minibatch.batch, state.phase.optimizer
    terms, own = state.phase.loss_terms(batch.totals), batch.places.intersection(kept)
    work = partial(add_gradients, run.policy, optimizer, terms=terms, kept=own)
    result, world = state.budget.run(minibatch, work), run.world
    totals = batch.totals
    return apply_gradients(optimizer, result, totals, learning_rate=rate, world=world)


def add_gradients(
    policy: Policy,
    optimizer: Optimizer,
    micro_batches: Sequence[MicroBatch],
    terms: LossTerms,
    *,
    kept: Collection[int] = (),
) -> Pass:
    """Return the gradient of a minibatch, summed over its micro-batches.

    A pass that fails leaves no gradient behind, so it can be repeated.

    Args:
        micro_batches: with advantages and, for a KL, the reference's log-probs.
        kept: places in the step's batch of completions whose token values are kept.
    """
    losses, parts, tokens = [], [], dict[int, TokenValues]()
    optimizer.clear()
    try:
        with optimizer.collecting():
            for micro in micro_batches:
                tick()
                rows = rows_of(micro, kept)
                loss, statistics, logprobs, entropy = loss_of(policy, micro, terms)
                if rows:
                    logprobs.retain_grad()
                loss.backward()
                losses.append(loss.detach())
                parts.append(statistics)
                if rows:
                    tokens |= token_values(
                        micro,
                        rows,
                        logprobs=logprobs,
                        entropy=entropy,
                        statistics=statistics,
                        config=terms.config,
                        totals=terms.totals,
                    )
        return Pass(
            loss=torch.stack(losses).double().sum(),
            statistics=TokenStatistics.joined(parts),
            tokens=tokens if kept else None,
        )
    except BaseException:
        optimizer.clear()
        raise


def loss_of(
    policy: Policy, micro: MicroBatch, terms: LossTerms
) -> tuple[torch.Tensor, TokenStatistics, torch.Tensor, torch.Tensor]:
    """Return loss and statistics of a micro-batch, and its log-probs and entropy, [B,
    T].

    Without old log-probs the policy is still the old one, so those of this pass serve.
    """
    config, reference = terms.config, terms.reference
    temperature, kl_full = config.logprob_temperature, None
    if config.loss.kl_estimator == "full" and reference is not None:
        # a server has no hidden states, and is refused with this estimator
        assert isinstance(reference, BaseReference)
        logprobs, entropy, kl_full = policy.logprobs_and_kl(
            micro, reference.policy, temperature=temperature
        )
    else:
        logprobs, entropy = policy.logprobs(micro, temperature=temperature)
    if micro.old_logprobs is None:
        micro.old_logprobs = logprobs.detach()
    if config.loss.old_logprobs == "sampling" and micro.first_logprobs is None:
        micro.first_logprobs = logprobs.detach()
    # At another temperature the engine's log-probs are of another distribution.
    is_comparable = config.incomparable != "temperature"
    gap = None
    if config.distils and micro.reference_logprobs is not None:
        gap = (logprobs.detach() - micro.reference_logprobs).flatten()
        gap = gap.index_select(0, micro.covered)  # -inf where none was asked
    loss, statistics = objective(
        logprobs,
        micro.old_logprobs,
        micro.advantages,
        micro.mask,
        config.loss_of_run,
        micro.reference_logprobs,
        sampling_logprobs=micro.sampling_logprobs if is_comparable else None,
        entropy=entropy,
        kl_full=kl_full,
        kl_coef=terms.kl_coef,
        entropy_coef=terms.entropy_coef,
        kept=micro.kept,
        chosen=micro.chosen,
        covered=micro.covered,
        totals=terms.totals,
    )
    return loss, replace(statistics, teacher_gap=gap), logprobs, entropy


def apply_gradients(
    optimizer: Optimizer,
    result: Pass,
    totals: BatchTotals,
    *,
    learning_rate: float,
    world: World = ALONE,
) -> UpdateResult:
    """Step by the gradients of all processes, unless there is no number among them."""
    optimizer.add_replicas()
    norm = optimizer.gradient_norm()
    # both at once: it is the only time in an update that a GPU is waited for
    own_loss, grad_norm = torch.stack([result.loss, norm.to(result.loss)]).tolist()
    loss = world.sum(own_loss)
    is_finite = math.isfinite(loss) and math.isfinite(grad_norm)
    if is_finite:
        optimizer.step(norm, learning_rate=learning_rate)
    optimizer.clear()
    return UpdateResult(
        loss=loss,
        grad_norm=grad_norm if is_finite else math.nan,
        is_skipped=not is_finite,
        num_sequences=totals.num_sequences,
        statistics=result.statistics.of_all(world),
        tokens={} if result.tokens is None else tokens_of_all(result.tokens, world),
    )
