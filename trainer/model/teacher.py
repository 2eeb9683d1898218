"""Teachers: references that are another model than the run's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from trainer.config import RunConfig
from trainer.hub import CONFIG, find_file
from trainer.model.budget import GpuMemory, memory_of
from trainer.model.loading import num_parameters, read_settings
from trainer.model.policy import Policy
from trainer.sizes.memory import MemoryEstimate, estimate
from trainer.sizes.model_sizes import dimensions_of
from trainer.tokenizers import end_ids, load_tokenizer


def check_teacher(config: RunConfig, policy: Policy) -> None:
    """Refuse a teacher that reads other tokens than the policy writes, or fewer.

    A completion then also ends as the teacher's do: a policy that learned to write the
    token that ends them would go on behind it.

    Models of one family may pad their vocabularies to different widths. Log-probs of
    tokens compare all the same; a sum over the whole vocabulary does not.

    Raises:
        ValueError: with the first difference.
    """
    source, revision = config.reference.model, config.reference.revision
    assert source is not None
    own = policy.tokenizer.get_vocab()
    tokenizer = load_tokenizer(source, revision=revision)
    if difference := first_difference(own, tokenizer.get_vocab()):
        raise ValueError(
            f"The teacher {source} has another tokenizer than {config.model.path}: "
            f"{difference}. Choose a teacher of the same model family."
        )
    settings = read_settings(source, revision=revision).get_text_config()
    width, own_width = settings.vocab_size, policy.head.weight.shape[0]
    if width <= max(own.values()):
        raise ValueError(
            f"The teacher {source} has a vocabulary of {width} tokens, but its "
            f"tokenizer {len(own)}. Choose another teacher."
        )
    longest = min(config.longest_read, policy.num_positions or 2**31)
    positions = getattr(settings, "max_position_embeddings", None) or longest
    if positions < longest:
        raise ValueError(
            f"The teacher {source} reads up to {positions:,} tokens, but the run's "
            f"longest sequence has {longest:,}. Lower rollout.max_new_tokens or, with "
            "a context, reference.max_prompt_tokens."
        )
    if config.loss.kl_estimator == "full" and width != own_width:
        raise ValueError(
            f"The policy has a vocabulary of {own_width} tokens, its teacher of "
            f'{width}, so loss.kl_estimator = "full" cannot compare them. Use "k3".'
        )
    policy.end_with(end_ids(tokenizer, revision=revision) & {*own.values()})


def first_difference(own: Mapping[str, int], other: Mapping[str, int]) -> str:
    """Name the first token, by its id, that two vocabularies differ in; "" if none.

    >>> first_difference({"a": 0, "b": 1}, {"a": 0, "c": 1})
    "token 1 is 'b' for the policy and 'c' for the teacher"
    """
    ids = [token_id for _, token_id in own.items() ^ other.items()]
    if not ids:
        return ""

    policys, teachers = (
        " or ".join(sorted(repr(t) for t, place in tokens.items() if place == min(ids)))
        for tokens in (own, other)
    )
    return (
        f"token {min(ids)} is {policys or 'missing'} for the policy and "
        f"{teachers or 'missing'} for the teacher"
    )


def parks_teacher(config: RunConfig, policy: Policy) -> bool:
    """Return whether a teacher waits in main memory, for the GPU has no room for it.

    Where a model's sizes are not known, it does: that costs a copy to the GPU in each
    step. One in parts, or that each update reads again, stays where it is.
    """
    memory = memory_of(policy.device)
    stays = policy.whole is not policy or config.loss.kl_estimator == "full"
    if memory is None or stays:
        return False
    estimated = estimate_on(memory, config)
    return estimated is None or estimated.parks_teacher


def estimate_on(memory: GpuMemory, config: RunConfig) -> MemoryEstimate | None:
    """Estimate a run on a GPU; None where the sizes of its models are not known."""
    path, revision = config.model.path, config.model.revision
    file = find_file(path, CONFIG, revision)
    if file is None:
        return None
    settings = json.loads(file.read_bytes())
    try:
        estimated = estimate(
            config,
            settings,
            on_gpu=True,
            gpu_bytes=memory.total_bytes(),
            teachers=teacher_settings(config),
        )
        num_weights = dimensions_of(settings).num_parameters
    except ValueError:  # the sizes of this kind are not known
        return None
    is_known = num_weights <= 1.05 * num_parameters(path, revision=revision)
    return estimated if is_known else None


def teachers_of(config: RunConfig) -> Iterator[tuple[str, str | None]]:
    """Yield source and revision of each phase's teacher in this process."""
    for phase in config.phase_configs:
        reference = phase.config.reference
        if reference.model is not None and phase.reference_kind == "frozen":
            yield reference.model, reference.revision


def teacher_settings(config: RunConfig) -> dict[str, Any]:
    """Return config.json of the teachers in this process, as far as there is one."""
    return {
        source: json.loads(file.read_bytes())
        for source, revision in teachers_of(config)
        if (file := find_file(source, CONFIG, revision))
    }
