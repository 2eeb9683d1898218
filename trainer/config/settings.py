"""Settings of a run, and what follows from them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from trainer.config.environment import EnvironmentConfig
from trainer.config.loss import LossConfig
from trainer.config.objective import AdvantageConfig, ReferenceConfig
from trainer.config.part import Part, about
from trainer.config.task import (
    CurriculumConfig,
    DataConfig,
    ModelConfig,
    RewardConfig,
    RolloutConfig,
    restrictions_of,
)
from trainer.config.training import (
    CheckpointConfig,
    DistributedConfig,
    EvaluationConfig,
    LoggingConfig,
    OptimConfig,
)


class Settings(Part):
    """The settings of one phase of a run: all but the list of phases."""

    seed: int = Field(
        0,
        ge=0,
        le=2**32 - 1,
        description="For data order, held-out rows, sampling.",
        json_schema_extra=about(main=8),
    )
    model: ModelConfig
    data: DataConfig
    rollout: RolloutConfig = RolloutConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    reward: RewardConfig
    advantage: AdvantageConfig = AdvantageConfig()
    loss: LossConfig = LossConfig()
    reference: ReferenceConfig = ReferenceConfig()
    optim: OptimConfig = Field(OptimConfig(), title="Optimizer")
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    distributed: DistributedConfig = DistributedConfig()

    @property
    def longest_completion(self) -> int:
        """Tokens of the longest completion, those of its environment too."""
        if self.environment.is_there:
            return self.environment.max_tokens - self.data.max_prompt_tokens
        return self.rollout.max_new_tokens

    @property
    def loss_of_run(self) -> LossConfig:
        """The objective with what it takes from other parts filled in."""
        length = self.loss.constant_length or self.rollout.max_new_tokens
        update: dict[str, Any] = {"constant_length": length}
        if self.samples_kl:  # of what is only measured, all runs have the same estimate
            update |= {"kl_estimator": "k3", "kl_clamp": None}
        return self.loss.model_copy(update=update)

    @property
    def logprob_temperature(self) -> float:
        """The divisor of the logits whose log-probs the loss is made of."""
        return self.rollout.logprob_temperature or self.rollout.temperature

    @property
    def incomparable(self) -> Literal["restricted", "temperature"] | None:
        """Why log-probs of sampler and trainer say little of each other, if they do."""
        if self.logprob_temperature != self.rollout.temperature:
            return "temperature"
        return "restricted" if restrictions_of(self.rollout) else None

    @property
    def measures_mismatch(self) -> bool:
        """True if each step stores how far sampler and trainer are apart."""
        return self.logging.mismatch and self.rollout.source != "dataset"

    @property
    def has_reference(self) -> bool:
        """True if a model stands beside the policy for it to be measured against."""
        kind = self.reference.kind
        if kind == "auto" and not self.reference.is_teacher:
            return self.loss.kl_coef > 0 or self.advantage.credit == "preference"
        return kind != "none"

    @property
    def distils(self) -> bool:
        """True if the reference is a teacher."""
        return self.has_reference and self.reference.is_teacher

    @property
    def lacks_teacher(self) -> bool:
        """True if the loss is the KL to the start alone, which teaches nothing."""
        loss, reference = self.loss, self.reference
        others = (
            *(self.distils, loss.entropy_coef, loss.entropy_target),
            *(loss.sampler_penalty, loss.covariance == "kl"),
            *(reference.reset_every_steps, reference.mix_every_steps),
        )
        return self.advantage.weight == 0 and not any(others)

    @property
    def samples_kl(self) -> bool:
        """True if a KL that nothing depends on is measured on a sample of the tokens.

        Of texts that the policy did not sample, log-ratios estimate no KL.
        """
        is_free = self.reference.kind == "auto" and not self.has_reference
        return is_free and self.rollout.source == "policy"

    @property
    def normalizes_rules(self) -> bool:
        """True if rules are compared one by one: asked for here or by the recipe."""
        combine = self.advantage.combine
        return combine == "normalize_then_sum" or self.reward.recipe.normalizes

    @property
    def compares_rules(self) -> bool:
        """True if that is what a completion's advantage is made of."""
        return self.advantage.credit == "outcome" and self.normalizes_rules

    @property
    def completions_per_step(self) -> int:
        return self.rollout.prompts_per_step * self.rollout.group_size
