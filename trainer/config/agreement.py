"""What the parts of a configuration must not ask of one another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainer.rewards.spec import judges_groups, recipe_bounds

if TYPE_CHECKING:
    from trainer.config.run import RunConfig

# vLLM samples at no temperature between 0 and this one (its sampling_params.py).
_VLLM_COLDEST = 0.01


def complaints(config: RunConfig) -> Iterator[str]:
    """One sentence for each disagreement: what is asked for, and what to do."""
    yield from _schedule(config)
    yield from _model(config)
    yield from _reference(config)
    yield from _kl(config)
    yield from _credit(config)
    yield from _steps(config)
    yield from _penalty(config)
    yield from _sampling(config)
    yield from _engine(config)
    yield from _one_step_off(config)
    yield from complaints_of_many(
        config, num_processes=config.distributed.num_processes
    )


def complaints_of_many(config: RunConfig, *, num_processes: int) -> Iterator[str]:
    """What several processes cannot do together."""
    if num_processes == 1:
        return
    if config.model.quantization != "none":
        yield (
            f'model.quantization = "{config.model.quantization}" keeps weights that '
            f"cannot be spread over {num_processes} processes. Use one process, or "
            '"none".'
        )
    if config.optim.optimizer != "adamw":
        yield (
            f'optim.optimizer = "{config.optim.optimizer}" cannot be spread over '
            f'{num_processes} processes. Use one process, or "adamw".'
        )
    if config.rollout.engine == "vllm":
        yield (
            'rollout.engine = "vllm" takes the weights of one process, not parts of '
            f'{num_processes}. Use one process, "vllm_server" on other GPUs, or '
            '"transformers".'
        )


def _schedule(config: RunConfig) -> Iterator[str]:
    optim = config.optim
    if not config.phases and optim.warmup_steps >= optim.num_steps:
        yield (
            f"Warm-up of {optim.warmup_steps} steps leaves nothing of a run of "
            f"{optim.num_steps} steps. Make it shorter than the run."
        )
    if optim.minibatches > config.rollout.prompts_per_step:
        yield (
            f"{config.rollout.prompts_per_step} prompts a step cannot be cut into "
            f"{optim.minibatches} minibatches. Lower optim.minibatches or raise "
            "rollout.prompts_per_step."
        )


def _model(config: RunConfig) -> Iterator[str]:
    if config.model.quantization != "none" and config.model.lora_rank == 0:
        yield (
            f'model.quantization = "{config.model.quantization}" keeps weights that '
            "cannot be trained. Set model.lora_rank to train adapters on them."
        )


def _reference(config: RunConfig) -> Iterator[str]:
    reference, loss = config.reference, config.loss
    if loss.kl_coef > 0 and reference.kind == "none":
        yield (
            f"A KL weight of {loss.kl_coef:g} needs a reference model, but "
            'reference.kind is "none". Set it to "auto", or the weight to 0.'
        )
    if config.advantage.credit == "preference" and reference.kind == "none":
        yield (
            'advantage.credit = "preference" measures the policy against a reference, '
            'but reference.kind is "none". Set it to "auto".'
        )
    if reference.kind == "base" and config.model.lora_rank == 0:
        yield (
            'reference.kind = "base" is the model without its adapters, but '
            'model.lora_rank is 0. Use "frozen", or train adapters.'
        )
    if (reference.kind == "server") != (reference.url is not None):
        yield (
            'reference.kind = "server" and reference.url belong together. Set both, '
            "or neither."
        )
    if reference.kind == "server" and reference.token_file is None:
        yield (
            "A reference server asks for a token. Set reference.token_file to the "
            "file that it was started with."
        )
    moves = reference.reset_every_steps or reference.mix_every_steps
    is_base = reference.kind == "base" or (
        reference.kind == "auto" and config.model.lora_rank > 0
    )
    if moves and (reference.kind in ("none", "server") or is_base):
        kind = "base" if is_base else reference.kind
        yield (
            f'A reference of kind "{kind}" cannot be reset or mixed. Use "frozen", '
            "or set reference.reset_every_steps and mix_every_steps to 0."
        )


def _kl(config: RunConfig) -> Iterator[str]:
    loss, advantage = config.loss, config.advantage
    penalised = loss.kl_in == "reward" and loss.kl_coef > 0
    if penalised and (loss.kl_estimator == "full" or loss.kl_estimator[-1] == "+"):
        yield (
            f'loss.kl_in = "reward" takes one number a token and no gradient, but '
            f'loss.kl_estimator is "{loss.kl_estimator}". Use "k1" or "k3".'
        )
    if loss.kl_ratio and (
        loss.kl_in == "reward"
        or loss.kl_estimator == "full"
        or loss.kl_estimator[-1] == "+"
    ):
        yield (
            "loss.kl_ratio corrects the gradient of an estimate in the loss, but "
            f'loss.kl_in is "{loss.kl_in}" and kl_estimator "{loss.kl_estimator}", '
            'which need none. Switch it off, or use kl_in = "loss" with "k3".'
        )
    if penalised and config.normalizes_rules:
        yield (
            'loss.kl_in = "reward" takes the KL off the summed reward, but '
            f"{_normalizing(config)} never sums rewards. Use "
            '"sum_then_normalize" and "sum", or kl_in = "loss".'
        )
    if penalised and advantage.credit in ("ones", "process", "preference"):
        yield (
            f'loss.kl_in = "reward" has no effect with advantage.credit = '
            f'"{advantage.credit}", which does not compare total rewards. Use kl_in = '
            '"loss".'
        )
    if penalised and config.rollout.source == "start":
        yield (
            'loss.kl_in = "reward" measures completions as they were sampled, and with '
            'rollout.source = "start" that is by the starting model, whatever was '
            'learnt since. Use kl_in = "loss".'
        )
    if loss.kl_estimator == "full" and config.reference.kind == "server":
        yield (
            'loss.kl_estimator = "full" needs the reference\'s probabilities of the '
            "whole vocabulary, which a server does not send. Use "
            '"k3", or a reference in this process.'
        )
    if loss.kl_target is not None and loss.kl_coef == 0:
        yield (
            f"A KL target of {loss.kl_target:g} nats needs a KL weight to start from. "
            "Set loss.kl_coef above 0, or leave the target empty."
        )
    lowest = recipe_bounds(config.reward.recipe)[0]
    lowered = penalised or config.reward.overlong_buffer_tokens > 0
    if advantage.scale == "mean" and (lowest < 0 or lowered):
        yield (
            'advantage.scale = "mean" divides by the group\'s mean reward, which '
            f"must not be negative; this recipe can give {lowest:g}"
            f'{" less a penalty" if lowered else ""}. Use "group_std".'
        )


def _steps(config: RunConfig) -> Iterator[str]:
    recipe = config.reward.step_recipe
    if recipe is None or config.advantage.credit != "process":
        return
    if recipe.normalizes:
        yield (
            'combine = "normalize_then_sum" has no effect in a step recipe: steps are '
            'compared by their whole rewards. Use "sum".'
        )
    for rule in recipe.rules:
        if judges_groups(rule):
            yield (
                f'Rule "{rule.name}" ({rule.kind}) compares the completions of a '
                "prompt, but in a step recipe it would be given their steps. Take it "
                "out."
            )
    lowest = recipe_bounds(recipe)[0]
    if config.advantage.scale == "mean" and lowest < 0:
        yield (
            'advantage.scale = "mean" divides by the mean reward of a group\'s steps, '
            f"which must not be negative; the step recipe can give {lowest:g}. Use "
            '"group_std".'
        )


def _penalty(config: RunConfig) -> Iterator[str]:
    names = [rule.name for rule in config.reward.recipe.rules]
    buffer, longest = (
        config.reward.overlong_buffer_tokens,
        config.rollout.max_new_tokens,
    )
    if buffer > longest:
        yield (
            f"An overlong buffer of {buffer} tokens does not fit into completions of "
            f"at most {longest}. Lower reward.overlong_buffer_tokens or raise "
            "rollout.max_new_tokens."
        )
    if config.reward.overlong_buffer_tokens > 0 and "overlong" in names:
        yield (
            'With reward.overlong_buffer_tokens above 0 the name "overlong" is the '
            "penalty's, but a rule has it too. Rename the rule."
        )


def _credit(config: RunConfig) -> Iterator[str]:
    advantage, loss = config.advantage, config.loss
    if advantage.credit == "process" and config.reward.step_recipe is None:
        yield (
            'advantage.credit = "process" needs a reward for each reasoning step. Set '
            'reward.step_recipe, or use "outcome".'
        )
    if advantage.credit == "process" and loss.include_prompt:
        yield (
            "loss.include_prompt spreads one advantage over the prompt's tokens, but "
            'advantage.credit = "process" gives each token its own. Switch one off.'
        )
    if advantage.credit == "process" and config.normalizes_rules:
        yield (
            f"{_normalizing(config)} has no effect with "
            'advantage.credit = "process", which compares steps by their whole '
            'rewards. Use "sum_then_normalize" and "sum".'
        )
    joins = config.reward.recipe.combine
    if advantage.combine == "normalize_then_sum" and joins in ("product", "minimum"):
        yield (
            'advantage.combine = "normalize_then_sum" sums rules that the recipe joins '
            f'by their {joins}. Use "sum_then_normalize", or a recipe that sums.'
        )
    if advantage.combine == "normalize_then_sum" and config.reward.recipe.clip:
        yield (
            'advantage.combine = "normalize_then_sum" never looks at the sum of the '
            "rules, which the recipe clips. Clip the rules instead."
        )
    if advantage.whiten and advantage.credit in ("ones", "preference"):
        yield (
            f'advantage.whiten has no effect on advantage.credit = "'
            f'{advantage.credit}", which compares no rewards over the batch. Switch '
            "it off."
        )
    compares = advantage.credit == "preference" or (
        advantage.credit == "outcome" and advantage.baseline != "none"
    )
    if config.rollout.group_size == 1 and compares:
        yield (
            "A group of 1 completion has nothing to compare with. Raise "
            "rollout.group_size to at least 2."
        )
    if advantage.credit == "preference" and loss.surrogate != "reinforce":
        yield (
            'advantage.credit = "preference" is DPO\'s own gradient coefficient; with '
            f'loss.surrogate = "{loss.surrogate}" it would be clipped. Use '
            '"reinforce".'
        )


def _normalizing(config: RunConfig) -> str:
    if config.advantage.combine == "normalize_then_sum":
        return 'advantage.combine = "normalize_then_sum"'
    return 'The recipe\'s combine = "normalize_then_sum"'


def _sampling(config: RunConfig) -> Iterator[str]:
    rollout, loss = config.rollout, config.loss
    uses_sampling = loss.old_logprobs == "sampling" or loss.importance_correction
    if uses_sampling and (rollout.top_p < 1 or rollout.top_k > 0):
        yield (
            f"rollout.top_p = {rollout.top_p:g} and top_k = {rollout.top_k} sample "
            "from a part of the vocabulary, so ratios to the sampling log-probs are "
            "off by that part's mass. Use top_p = 1 and top_k = 0, or old_logprobs = "
            '"policy" without importance_correction.'
        )
    # A KL in the reward is measured on the log-probs of sampling.
    compares = uses_sampling or (loss.kl_in == "reward" and loss.kl_coef > 0)
    if compares and config.logprob_temperature != rollout.temperature:
        yield (
            f"Log-probs at temperature {config.logprob_temperature:g} cannot be "
            f"compared with those of sampling at {rollout.temperature:g}. Leave "
            'rollout.logprob_temperature empty, or use old_logprobs = "policy" without '
            'importance_correction and kl_in = "loss".'
        )
    if uses_sampling and loss.include_prompt:
        yield (
            "loss.include_prompt covers tokens that nobody sampled, so they have no "
            'sampling log-probs. Use old_logprobs = "policy" without '
            "importance_correction."
        )
    if rollout.source != "dataset":
        return
    if config.advantage.credit != "ones" or uses_sampling:
        yield (
            'rollout.source = "dataset" brings texts that no model sampled, so there '
            'is nothing to compare. Use advantage.credit = "ones" and old_logprobs = '
            '"policy".'
        )
    if rollout.group_size != 1 or rollout.dynamic_sampling != "off":
        yield (
            'rollout.source = "dataset" has one completion a row. Set '
            'rollout.group_size to 1 and dynamic_sampling to "off".'
        )


def _engine(config: RunConfig) -> Iterator[str]:
    rollout = config.rollout
    if (rollout.engine == "vllm_server") != bool(rollout.urls):
        yield (
            'rollout.engine = "vllm_server" and rollout.url belong together. Set both, '
            "or neither."
        )
    if len(set(rollout.urls)) < len(rollout.urls):
        yield (
            f'rollout.url = "{rollout.url}" names a server twice, which is held once. '
            "Name each server once."
        )
    if rollout.engine == "vllm_server" and rollout.token_file is None:
        yield (
            "A rollout server asks for a token. Set rollout.token_file to the file "
            "that it was started with."
        )
    if rollout.engine not in ("auto", "transformers"):
        yield from complaints_of_vllm(config)


def complaints_of_vllm(config: RunConfig) -> Iterator[str]:
    """What vLLM cannot sample."""
    rollout = config.rollout
    if rollout.top_p < 1 or rollout.top_k > 0:
        yield (
            f"rollout.top_p = {rollout.top_p:g} and top_k = {rollout.top_k} sample "
            "from a part of the vocabulary, and vLLM gives log-probs of that part "
            "instead of the whole. Use top_p = 1 and top_k = 0, or rollout.engine = "
            '"transformers".'
        )
    coldest = min(rollout.temperature, config.evaluation.temperature or 1)
    if coldest < _VLLM_COLDEST:
        yield (
            f"vLLM takes a temperature of {coldest:g} for {_VLLM_COLDEST:g}. Use at "
            f"least that, or 0 where only evaluation samples, or rollout.engine = "
            '"transformers".'
        )


def _one_step_off(config: RunConfig) -> Iterator[str]:
    """What sampling beside training needs, and what it cannot be beside."""
    rollout, loss = config.rollout, config.loss
    if not rollout.one_step_off:
        return
    if rollout.sleep is True:
        yield (
            "rollout.sleep takes vLLM off the GPU while the policy is updated, and "
            "rollout.one_step_off samples at that very time. Switch one off."
        )
    if rollout.source == "dataset":
        yield (
            'rollout.source = "dataset" samples nothing, so nothing can be sampled '
            "beside training. Switch rollout.one_step_off off."
        )
    if rollout.source != "policy":  # what never changes may be sampled at any time
        return
    if loss.importance_correction is None:
        yield (
            "rollout.one_step_off trains on what the weights of one step before have "
            "sampled, which must be corrected for. Set loss.importance_correction to "
            '"token_truncate" (or one of its other ways), or switch '
            "rollout.one_step_off off."
        )
    if loss.old_logprobs == "sampling":
        yield (
            "rollout.one_step_off weighs a completion by how likely the policy before "
            "the update finds it and how likely the sampling weights did, but with "
            'loss.old_logprobs = "sampling" both are the same. Use "policy".'
        )
    if loss.kl_in == "reward" and loss.kl_coef > 0:
        yield (
            'loss.kl_in = "reward" measures completions as they were sampled, and with '
            "rollout.one_step_off that is by the weights of one step before. Use "
            'kl_in = "loss".'
        )
