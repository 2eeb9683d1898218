"""Checks across the parts of a configuration."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.config.settings import Settings
from trainer.config.task import restrictions_of
from trainer.rewards.spec import judges_groups, recipe_bounds

# vLLM samples at no temperature between 0 and this one (its sampling_params.py).
_VLLM_COLDEST = 0.01
_MAX_RANKS = 1_024


def complaints(config: Settings) -> Iterator[str]:
    """Yield a sentence for each disagreement: what is asked for, and what to do."""
    for check in (
        *(_sizes, _reference, _kl, _entropy, _credit, _steps, _overlong, _sampling),
        *(_curriculum, _environment, _engine, _one_step_off, _ranks),
    ):
        yield from check(config)


def _sizes(config: Settings) -> Iterator[str]:
    optim = config.optim
    if optim.minibatches > config.rollout.prompts_per_step:
        yield (
            f"rollout.prompts_per_step is {config.rollout.prompts_per_step}, too few "
            f"for {optim.minibatches} minibatches. Lower optim.minibatches or raise "
            "rollout.prompts_per_step."
        )
    if config.model.quantization != "none" and config.model.lora_rank == 0:
        yield (
            f'Weights with model.quantization = "{config.model.quantization}" cannot '
            "be trained. Set model.lora_rank to train adapters on them."
        )


def _overlong(config: Settings) -> Iterator[str]:
    buffer = config.reward.overlong_buffer_tokens
    if buffer > config.rollout.max_new_tokens:
        yield (
            f"reward.overlong_buffer_tokens is {buffer}, but completions have at most "
            f"{config.rollout.max_new_tokens} tokens. Lower it or raise "
            "rollout.max_new_tokens."
        )
    if buffer > 0 and any(r.name == "overlong" for r in config.reward.recipe.rules):
        yield (
            'A rule is named "overlong", which is reserved for the penalty of '
            "reward.overlong_buffer_tokens. Rename the rule."
        )


def _ranks(config: Settings) -> Iterator[str]:
    distributed = config.distributed
    if distributed.where == "machine" and distributed.num_nodes > 1:
        yield (
            f"distributed.num_nodes is {distributed.num_nodes}, but distributed.where "
            'is "machine". Set it to "ray", or the nodes to 1.'
        )
    if distributed.num_ranks > _MAX_RANKS:
        yield (
            f"distributed.num_nodes × distributed.num_processes is "
            f"{distributed.num_ranks:,}; a run has at most {_MAX_RANKS:,} ranks."
        )
    yield from complaints_of_many(config, num_processes=distributed.num_ranks)


def complaints_of_many(config: Settings, *, num_processes: int) -> Iterator[str]:
    """Yield what several processes cannot do together."""
    if num_processes == 1:
        return
    if config.model.quantization != "none":
        yield (
            f'model.quantization = "{config.model.quantization}" cannot be sharded '
            f'over {num_processes} processes. Use one process, or "none".'
        )
    if config.optim.optimizer != "adamw":
        yield (
            f'optim.optimizer = "{config.optim.optimizer}" cannot be sharded over '
            f'{num_processes} processes. Use one process, or "adamw".'
        )
    if config.rollout.engine == "vllm" and config.rollout.tensor_parallel_size > 1:
        yield (
            "rollout.tensor_parallel_size splits vLLM over GPUs that belong to other "
            f"processes; got {config.rollout.tensor_parallel_size} with "
            f"{num_processes} processes. Set it to 1, or use one process."
        )
    if config.environment.kind == "verifiers":
        yield (
            'environment.kind = "verifiers" supports one training process; got '
            f"{num_processes}. Use one process."
        )


def _reference(config: Settings) -> Iterator[str]:
    reference, loss = config.reference, config.loss
    readers = {
        f"loss.kl_coef = {loss.kl_coef:g}": loss.kl_coef > 0,
        'advantage.credit = "preference"': config.advantage.credit == "preference",
        f'reference.context = "{reference.context}"': reference.context != "none",
    }
    if reference.kind == "none" and any(readers.values()):
        reader = next(name for name, reads in readers.items() if reads)
        yield (
            f'{reader} needs a reference model, but reference.kind is "none". Set it '
            f'to "auto", or turn {reader.partition(" ")[0]} off.'
        )
    if reference.kind == "base" and config.model.lora_rank == 0:
        yield (
            'reference.kind = "base" needs LoRA adapters, but model.lora_rank is 0. '
            'Use "frozen", or train adapters.'
        )
    if (reference.kind == "server") != (reference.url is not None):
        yield (
            'reference.kind = "server" requires reference.url, and vice versa. Set '
            "both, or neither."
        )
    if reference.kind == "server" and reference.token_file is None:
        yield (
            "A reference server requires a token. Set reference.token_file to the "
            "token file of the server."
        )
    moves = reference.reset_every_steps or reference.mix_every_steps
    if reference.model is not None and reference.kind in ("none", "base"):
        yield (
            f'reference.model names a teacher, but reference.kind is "{reference.kind}"'
            '. Set it to "frozen" or "server", or remove the teacher.'
        )
    if reference.model is not None and moves:
        yield (
            "A teacher (reference.model) cannot be reset or mixed. Set "
            "reference.reset_every_steps and mix_every_steps to 0."
        )
    if reference.kind == "server" and reference.protocol == "vllm":
        yield from _vllm_teacher(config)
    if reference.context != "none":
        yield from _context(config)
    no_weight = config.distils and config.advantage.weight == 0
    if no_weight and config.rollout.dynamic_sampling != "off":
        yield (
            "advantage.weight = 0 learns from the teacher alone, to whom groups with "
            "equal rewards teach as much as others; rollout.dynamic_sampling = "
            f'"{config.rollout.dynamic_sampling}" would discard them. Set it to "off".'
        )
    is_base = reference.kind == "base" or (
        reference.kind == "auto" and config.model.lora_rank > 0
    )
    if moves and (reference.kind in ("none", "server") or is_base):
        kind = "base" if is_base else reference.kind
        yield (
            f'A reference of kind "{kind}" cannot be reset or mixed. Use "frozen", '
            "or set reference.reset_every_steps and mix_every_steps to 0."
        )


def _context(config: Settings) -> Iterator[str]:
    """Yield what a reference with a prompt of its own cannot be asked."""
    reference, loss, rollout = config.reference, config.loss, config.rollout
    context = f'reference.context = "{reference.context}"'
    if missing := [
        name
        for name in ("{prompt}", "{context}")
        if name not in reference.context_template
    ]:
        yield (
            f"reference.context_template has no {missing[0]}. Add it where the "
            f"{missing[0][1:-1]} belongs."
        )
    if loss.kl_estimator == "full":
        yield (
            'loss.kl_estimator = "full" compares models that read the same prompt, but '
            f'{context} gives the reference another one. Use "k3".'
        )
    if config.advantage.credit == "preference" or loss.kl_in == "reward":
        yield (
            f"With {context} some completions have no log-probs of the reference, "
            'which advantage.credit = "preference" and loss.kl_in = "reward" need. '
            'Use "outcome" and "loss".'
        )
    is_best = reference.context == "best_of_group"
    if is_best and (rollout.group_size == 1 or rollout.source == "dataset"):
        yield (
            f"{context} shows the reference another completion of the group. Raise "
            'rollout.group_size, with rollout.source = "policy".'
        )


def _vllm_teacher(config: Settings) -> Iterator[str]:
    if config.reference.model is None:
        yield (
            'reference.protocol = "vllm" needs reference.model: the model that the '
            "server was started with, whose tokenizer is compared with the policy's."
        )
    if config.logprob_temperature != 1:
        yield (
            "A vLLM server returns log-probs at temperature 1, but the run's are at "
            f"{config.logprob_temperature:g}. Set rollout.logprob_temperature to 1."
        )


def _kl(config: Settings) -> Iterator[str]:
    loss, advantage = config.loss, config.advantage
    penalised = loss.kl_in == "reward" and loss.kl_coef > 0
    if penalised and (loss.kl_estimator == "full" or loss.kl_estimator[-1] == "+"):
        yield (
            'loss.kl_in = "reward" needs an estimator with one value per token and no '
            f'gradient, but loss.kl_estimator is "{loss.kl_estimator}". Use "k1" or '
            '"k3".'
        )
    if loss.kl_ratio and (
        loss.kl_in == "reward"
        or loss.kl_estimator == "full"
        or loss.kl_estimator[-1] == "+"
    ):
        yield (
            "loss.kl_ratio corrects the gradient of a KL estimate in the loss, but "
            f'loss.kl_in is "{loss.kl_in}" and kl_estimator "{loss.kl_estimator}". '
            'Turn it off, or use kl_in = "loss" with "k3".'
        )
    if penalised and config.normalizes_rules:
        yield (
            'loss.kl_in = "reward" subtracts the KL from the summed reward, but '
            f'{_normalizing(config)} never sums rewards. Use "sum_then_normalize" and '
            '"sum", or kl_in = "loss".'
        )
    if penalised and advantage.credit in ("ones", "process", "preference"):
        yield (
            f'loss.kl_in = "reward" has no effect with advantage.credit = '
            f'"{advantage.credit}", which does not compare total rewards. Use kl_in = '
            '"loss".'
        )
    if penalised and config.rollout.source == "start":
        yield (
            'loss.kl_in = "reward" uses the sampling log-probs, which rollout.source '
            '= "start" takes from the starting model, not the policy. Use kl_in = '
            '"loss".'
        )
    if loss.kl_estimator == "full" and config.reference.kind == "server":
        yield (
            'loss.kl_estimator = "full" needs the reference\'s probabilities over the '
            'whole vocabulary, which a server does not return. Use "k3", or a model '
            "in this process."
        )
    if loss.kl_target is not None and loss.kl_coef == 0:
        yield (
            f"loss.kl_target = {loss.kl_target:g} needs an initial KL weight. Set "
            "loss.kl_coef above 0, or leave the target empty."
        )
    lowest = recipe_bounds(config.reward.recipe)[0]
    lowered = penalised or config.reward.overlong_buffer_tokens > 0
    if advantage.scale == "mean" and (lowest < 0 or lowered):
        yield (
            'advantage.scale = "mean" divides by the group\'s mean reward, which must '
            "not be negative; this reward can give "
            f'{lowest:g}{" minus a penalty" if lowered else ""}. Use "group_std".'
        )


def _entropy(config: Settings) -> Iterator[str]:
    loss, credit = config.loss, config.advantage.credit
    chooses = loss.top_entropy_share < 1 or loss.covariance is not None
    if chooses and loss.surrogate in ("gspo", "gmpo"):
        yield (
            "loss.top_entropy_share and loss.covariance leave out single tokens, but "
            f'loss.surrogate = "{loss.surrogate}" has one ratio per sequence. Use '
            '"clip".'
        )
    if loss.covariance == "kl" and loss.surrogate != "clip":
        yield (
            'loss.covariance = "kl" is a penalty beside the ratio of the surrogate '
            f'"clip"; loss.surrogate is "{loss.surrogate}". Use "clip" for both.'
        )
    if loss.covariance is not None and credit in ("ones", "preference"):
        yield (
            "loss.covariance needs advantages that compare rewards; advantage.credit = "
            f'"{credit}" gives none. Use "outcome", or leave the covariance empty.'
        )
    if loss.covariance == "clip" and loss.covariance_low >= loss.covariance_high:
        yield (
            f"loss.covariance_low is {loss.covariance_low:g}, not below "
            f"loss.covariance_high, {loss.covariance_high:g}. Lower it."
        )
    if loss.entropy_target is not None and loss.entropy_coef > 1:
        yield (
            f"loss.entropy_target keeps the entropy weight within 0 and 1, but "
            f"loss.entropy_coef is {loss.entropy_coef:g}. Lower it."
        )


def _steps(config: Settings) -> Iterator[str]:
    recipe = config.reward.step_recipe
    if recipe is None or config.advantage.credit != "process":
        return
    if recipe.normalizes:
        yield (
            'combine = "normalize_then_sum" has no effect in a step reward, because '
            'steps are compared by their total rewards. Use "sum".'
        )
    for rule in recipe.rules:
        if judges_groups(rule):
            yield (
                f'Rule "{rule.name}" ({rule.kind}) compares the completions of a '
                "prompt, but a step reward scores the steps of one completion. Remove "
                "it."
            )
    lowest = recipe_bounds(recipe)[0]
    if config.advantage.scale == "mean" and lowest < 0:
        yield (
            'advantage.scale = "mean" divides by the mean reward of a group\'s steps, '
            f"which must not be negative; the step reward can give {lowest:g}. Use "
            '"group_std".'
        )


def _credit(config: Settings) -> Iterator[str]:
    advantage, loss = config.advantage, config.loss
    has_steps = config.reward.step_recipe or config.environment.is_there
    if advantage.credit == "process" and not has_steps:
        yield (
            'advantage.credit = "process" needs a reward for each reasoning step. Set '
            'reward.step_recipe, or use "outcome".'
        )
    if advantage.credit == "process" and loss.include_prompt:
        yield (
            "loss.include_prompt needs one advantage per completion, but "
            'advantage.credit = "process" gives one per token. Turn one of them off.'
        )
    by_total = advantage.credit == "process" or advantage.is_pass_at_k
    if by_total and config.normalizes_rules:
        compared = "subsets" if advantage.is_pass_at_k else "steps"
        yield (
            f"{_normalizing(config)} has no effect with advantage.credit = "
            f'"{advantage.credit}", which compares {compared} by their total rewards. '
            'Use "sum_then_normalize" and "sum".'
        )
    if advantage.credit == "process" and advantage.baseline == "length_weighted":
        yield (
            'advantage.baseline = "length_weighted" weighs whole completions, but '
            'advantage.credit = "process" compares steps. Use "mean".'
        )
    joins = config.reward.recipe.combine
    if advantage.combine == "normalize_then_sum" and joins in ("product", "minimum"):
        yield (
            'advantage.combine = "normalize_then_sum" sums rules, but the reward '
            f'combines them by {joins}. Use "sum_then_normalize", or a reward that '
            "sums."
        )
    if advantage.combine == "normalize_then_sum" and config.reward.recipe.clip:
        yield (
            'advantage.combine = "normalize_then_sum" ignores the sum of the rules, '
            "which the reward clips. Clip the rules instead."
        )
    if advantage.whiten != "no" and advantage.credit in ("ones", "preference"):
        yield (
            "advantage.whiten has no effect with advantage.credit = "
            f'"{advantage.credit}", which does not compare rewards across the batch. '
            'Set it to "no".'
        )
    yield from _pass_at_k(config)
    is_alone = loss.kl_coef == 0 or loss.kl_in == "reward"
    has_penalty = loss.sampler_penalty > 0 or loss.covariance == "kl"
    has_bonus = loss.entropy_coef > 0 or loss.entropy_target is not None
    if advantage.weight == 0 and is_alone and not (has_penalty or has_bonus):
        yield (
            "advantage.weight = 0 leaves nothing to train on. Raise it, or use a KL in "
            "the loss (loss.kl_coef), an entropy bonus or loss.sampler_penalty."
        )
    if advantage.weight != 1 and advantage.credit == "preference":
        yield (
            f"advantage.weight = {advantage.weight:g} has no effect with "
            'advantage.credit = "preference", whose strength is preference_beta. Set '
            "it to 1."
        )
    compares = advantage.credit == "preference" or (
        advantage.credit == "outcome" and advantage.baseline != "none"
    )
    if config.rollout.group_size == 1 and compares and advantage.weight > 0:
        yield (
            "A group of 1 completion has no baseline. Raise rollout.group_size to at "
            "least 2."
        )
    if advantage.credit == "preference" and loss.surrogate != "reinforce":
        yield (
            'advantage.credit = "preference" is DPO\'s gradient coefficient; '
            f'loss.surrogate = "{loss.surrogate}" would clip it. Use "reinforce".'
        )
    unpaired = [name for name in loss.gap_settings if name != "importance_correction"]
    unpaired += ["top_entropy_share"] * (loss.top_entropy_share < 1)
    if advantage.credit == "preference" and unpaired:
        yield (
            'advantage.credit = "preference" trains on pairs of completions, and '
            f"loss.{unpaired[0]} would change one of a pair. Remove it."
        )


def _pass_at_k(config: Settings) -> Iterator[str]:
    advantage, size = config.advantage, config.rollout.group_size
    if not advantage.is_pass_at_k:
        return
    if advantage.pass_k > size:
        yield (
            f"advantage.pass_k is {advantage.pass_k}, but a group has {size} "
            "completions. Lower it, or raise rollout.group_size."
        )
    if advantage.credit == "pass_at_k_analytic" and advantage.pass_k == size:
        yield (
            f'advantage.credit = "pass_at_k_analytic" compares subsets of a group, but '
            f"one of {advantage.pass_k} is the whole group. Lower advantage.pass_k, or "
            "raise rollout.group_size."
        )


def _normalizing(config: Settings) -> str:
    if config.advantage.combine == "normalize_then_sum":
        return 'advantage.combine = "normalize_then_sum"'
    return 'The reward\'s combine = "normalize_then_sum"'


def _sampling(config: Settings) -> Iterator[str]:
    rollout, loss = config.rollout, config.loss
    if loss.is_dppo and loss.old_logprobs != "sampling":
        yield (
            f'loss.surrogate = "{loss.surrogate}" compares the policy with the '
            'rollout engine. Set loss.old_logprobs to "sampling".'
        )
    if loss.is_dppo and loss.importance_correction is not None:
        yield (
            f'The ratio of loss.surrogate = "{loss.surrogate}" corrects for the '
            "rollout engine already. Remove loss.importance_correction."
        )
    readers = [f"loss.{name}" for name in loss.gap_settings]
    readers += ["loss.covariance"] * (loss.covariance is not None)
    if loss.is_dppo:
        readers.append(f'loss.surrogate = "{loss.surrogate}"')
    elif loss.old_logprobs == "sampling":
        readers.append('loss.old_logprobs = "sampling"')
    uses_sampling = bool(readers)
    if readers and (restrictions := restrictions_of(rollout)):
        yield (
            f"Completions are sampled with {restrictions}, which their log-probs leave "
            f"out, but {readers[0]} compares with these log-probs. Remove one of them."
        )
    if loss.kl_in == "reward" and loss.kl_coef > 0:
        readers.append('loss.kl_in = "reward"')
    if readers and config.logprob_temperature != rollout.temperature:
        yield (
            f"Log-probs at temperature {config.logprob_temperature:g} cannot be "
            f"compared with sampling log-probs at {rollout.temperature:g}, as "
            f"{readers[0]} does. Leave rollout.logprob_temperature empty."
        )
    if uses_sampling and loss.include_prompt:
        yield (
            "loss.include_prompt covers prompt tokens, which have no sampling "
            f"log-probs for {readers[0]}. Remove one of them."
        )
    if rollout.source != "dataset":
        return
    if config.advantage.credit != "ones" or uses_sampling:
        yield (
            'rollout.source = "dataset" uses texts that no model sampled, so they '
            "have no rewards to compare and no sampling log-probs. Use "
            'advantage.credit = "ones" and old_logprobs = "policy", and nothing that '
            "compares with the rollout engine."
        )
    if rollout.group_size != 1 or rollout.dynamic_sampling != "off":
        yield (
            'rollout.source = "dataset" has one completion per row. Set '
            'rollout.group_size to 1 and dynamic_sampling to "off".'
        )


def _environment(config: Settings) -> Iterator[str]:
    environment, data = config.environment, config.data
    kinds = ("environment", "turn_rewards")
    for recipe in config.reward.recipes:
        rules = [rule.name for rule in recipe.rules if rule.kind in kinds]
        if rules and not environment.is_there:
            yield (
                f'Rule "{rules[0]}" scores by an environment, but environment.kind is '
                '"none". Choose one, or remove the rule.'
            )
        elif rules and recipe is config.reward.step_recipe:
            yield (
                f'Rule "{rules[0]}" reads a whole episode, not a step. Remove it: '
                "without a step reward, an environment's rewards of turns are those of "
                "the steps."
            )
    if not environment.is_there:
        return
    least = data.max_prompt_tokens + config.rollout.max_new_tokens
    if environment.max_tokens < least:
        yield (
            f"environment.max_tokens is {environment.max_tokens}, less than "
            "data.max_prompt_tokens and rollout.max_new_tokens together. Set it to "
            f"{least} and what the replies need."
        )
    if data.completion_prefix:
        yield (
            "data.completion_prefix begins one turn, but an episode has several. "
            "Empty it, or set environment.kind to none."
        )
    if config.advantage.credit == "preference":
        yield (
            'advantage.credit = "preference" compares completions of one turn. Use '
            '"outcome", or set environment.kind to none.'
        )


def _curriculum(config: Settings) -> Iterator[str]:
    curriculum = config.curriculum
    if curriculum.kind == "off":
        return
    if config.rollout.source == "dataset":
        yield (
            f'curriculum.kind = "{curriculum.kind}" draws prompts by the pass rates of '
            'sampled completions; rollout.source = "dataset" samples none. Set it to '
            '"off".'
        )
    if (curriculum.kind, curriculum.score) == ("learnability", "signal") and (
        config.rollout.group_size == 1
    ):
        yield (
            'curriculum.score = "signal" is the chance that the rewards of a group '
            'differ, but rollout.group_size is 1. Use "variance".'
        )


def _engine(config: Settings) -> Iterator[str]:
    rollout = config.rollout
    if (rollout.engine == "vllm_server") != bool(rollout.urls):
        yield (
            'rollout.engine = "vllm_server" requires rollout.url, and vice versa. '
            "Set both, or neither."
        )
    if len(set(rollout.urls)) < len(rollout.urls):
        yield (
            f'rollout.url = "{rollout.url}" contains a server twice. Name each server '
            "once."
        )
    if rollout.engine == "vllm_server" and rollout.token_file is None:
        yield (
            "A rollout server requires a token. Set rollout.token_file to the token "
            "file of the server."
        )
    if rollout.engine not in ("auto", "transformers"):
        yield from complaints_of_vllm(config)


def complaints_of_vllm(config: Settings) -> Iterator[str]:
    """Yield what vLLM cannot sample."""
    rollout = config.rollout
    if restrictions := restrictions_of(rollout):
        yield (
            f"vLLM's log-probs include {restrictions}; the policy's do not. "
            'Remove the setting, or use rollout.engine = "transformers".'
        )
    coldest = min(rollout.temperature, config.evaluation.temperature or 1)
    if coldest < _VLLM_COLDEST:
        yield (
            f"vLLM raises a temperature of {coldest:g} to {_VLLM_COLDEST:g}. Use at "
            'least that, or 0 for evaluation only, or rollout.engine = "transformers".'
        )


def _one_step_off(config: Settings) -> Iterator[str]:
    """Yield what sampling beside training lacks, and what it cannot be beside."""
    rollout, loss = config.rollout, config.loss
    if not rollout.one_step_off:
        return
    if rollout.sleep is True:
        yield (
            "rollout.sleep frees vLLM's GPU memory during updates, but "
            "rollout.one_step_off samples during updates. Turn one of them off."
        )
    if rollout.source == "dataset":
        yield (
            'rollout.source = "dataset" samples nothing, so rollout.one_step_off has '
            "no effect. Turn it off."
        )
    if rollout.source != "policy":  # what never changes may be sampled at any time
        return
    if loss.kl_in == "reward" and loss.kl_coef > 0:
        yield (
            'loss.kl_in = "reward" uses the sampling log-probs, which '
            'rollout.one_step_off takes from older weights. Use kl_in = "loss".'
        )
    if loss.is_dppo:  # its ratio is against what sampled, however old
        return
    if loss.importance_correction is None:
        yield (
            "rollout.one_step_off trains on off-policy completions, which needs "
            "a correction. Set loss.importance_correction, for example to "
            '"token_truncate", or turn rollout.one_step_off off.'
        )
    if loss.old_logprobs == "sampling":
        yield (
            "rollout.one_step_off needs the log-probs of the policy before the "
            'update, but loss.old_logprobs = "sampling" uses the sampling '
            'log-probs. Use "policy".'
        )
