"""The engine that a run asks for."""

from __future__ import annotations

from trainer.config import RunConfig
from trainer.model.policy import Policy
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.engine import RolloutEngine
from trainer.rollout.prefetch import SnapshotEngine, SnapshotServerEngine
from trainer.rollout.server_engine import VllmServerEngine, rollout_servers
from trainer.rollout.vllm import SamplerSettings, VllmEngine, VllmSampler


def make_engine(config: RunConfig, policy: Policy) -> RolloutEngine:
    """What samples from the policy, with its present weights.

    Raises:
        ValueError: vLLM is not there or cannot run the model; no such server.
    """
    match config.rollout.engine:
        case "transformers":
            own = SnapshotEngine if config.has_snapshot else TransformersEngine
            return own(
                policy,
                max_batch_rows=config.rollout.max_batch_rows,
                decoding=config.rollout.decoding,
            )
        case "vllm":
            return VllmEngine(policy, VllmSampler(_settings(config, policy)))
        case "vllm_server":
            sent = SnapshotServerEngine if config.has_snapshot else VllmServerEngine
            return rollout_servers(config, policy, sent)


def _settings(config: RunConfig, policy: Policy) -> SamplerSettings:
    model, rollout = config.model, config.rollout
    return SamplerSettings(
        model=model.path,
        revision=model.revision,
        dtype=policy.model.dtype,
        max_length=_longest(config, policy),
        max_rows=rollout.max_batch_rows,
        cache_gib=rollout.cache_gib,
        tensor_parallel_size=rollout.tensor_parallel_size,
        lora_rank=model.lora_rank,
        sleeps=rollout.sleep,
    )


def _longest(config: RunConfig, policy: Policy) -> int:
    """Tokens of the longest prompt with its completion, as far as the model goes."""
    wanted = config.data.max_prompt_tokens + max(
        stage.config.rollout.max_new_tokens for stage in config.stages
    )
    settings = policy.model.config.get_text_config()
    return min(wanted, getattr(settings, "max_position_embeddings", None) or wanted)
