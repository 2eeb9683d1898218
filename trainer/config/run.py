"""One run, whole, and reading it from a file."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError, model_validator

from trainer.config.course import (
    CheckpointConfig,
    DistributedConfig,
    EvaluationConfig,
    LoggingConfig,
    OptimConfig,
)
from trainer.config.objective import AdvantageConfig, LossConfig, ReferenceConfig
from trainer.config.part import Part
from trainer.config.task import DataConfig, ModelConfig, RewardConfig, RolloutConfig
from trainer.rewards.spec import recipe_bounds


class RunConfig(Part):
    """One GRPO run, whole."""

    seed: int = Field(
        0,
        ge=0,
        le=2**32 - 1,
        description="Fixes data order, held-out rows and sampling.",
    )
    model: ModelConfig
    data: DataConfig
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig
    advantage: AdvantageConfig = AdvantageConfig()
    loss: LossConfig = LossConfig()
    reference: ReferenceConfig = ReferenceConfig()
    optim: OptimConfig = OptimConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    distributed: DistributedConfig = DistributedConfig()

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        for complaint in self._unsupported():
            raise ValueError(complaint)
        if self.loss.kl_coef > 0 and self.reference.kind == "none":
            raise ValueError(
                f"A KL weight of {self.loss.kl_coef:g} needs a reference model, but "
                'reference.kind is "none". Set it to "auto", or the weight to 0.'
            )
        if self.optim.warmup_steps >= self.optim.num_steps:
            raise ValueError(
                f"Warm-up of {self.optim.warmup_steps} steps leaves nothing of a run "
                f"of {self.optim.num_steps} steps. Make it shorter than the run."
            )
        return self

    def _unsupported(self) -> Iterator[str]:
        """Settings that a run's loop cannot honour."""
        penalised = self.loss.kl_in == "reward" and self.loss.kl_coef > 0
        if self.advantage.credit == "process":
            yield (
                'advantage.credit = "process" needs a reward for each reasoning step, '
                'which no rule gives. Use "outcome".'
            )
        if self.loss.kl_estimator == "full":
            yield (
                'loss.kl_estimator = "full" needs the probabilities of the whole '
                "vocabulary, but only those of sampled tokens are kept. Use "
                '"k3".'
            )
        if penalised and self.advantage.combine == "normalize_then_sum":
            yield (
                'loss.kl_in = "reward" takes the KL off the summed reward, but '
                'advantage.combine = "normalize_then_sum" never sums rewards. Use '
                '"sum_then_normalize", or kl_in = "loss".'
            )
        if self.advantage.credit == "ones" and penalised:
            yield (
                'loss.kl_in = "reward" has no effect with advantage.credit = "ones", '
                'which never looks at rewards. Use kl_in = "loss".'
            )
        lowest = recipe_bounds(self.reward.recipe)[0]
        if self.advantage.scale == "mean" and (lowest < 0 or penalised):
            yield (
                'advantage.scale = "mean" divides by the group\'s mean reward, which '
                f"must not be negative; this recipe can give {lowest:g}"
                f'{" less the KL" if penalised else ""}. Use "group_std".'
            )

    @property
    def loss_of_run(self) -> LossConfig:
        """The objective with what it takes from other parts filled in."""
        length = self.loss.constant_length or self.rollout.max_new_tokens
        return self.loss.model_copy(update={"constant_length": length})

    @property
    def completions_per_step(self) -> int:
        return self.rollout.prompts_per_step * self.rollout.group_size


def load_config(path: Path) -> RunConfig:
    """Read a run's configuration from TOML or, by its suffix, JSON."""
    text = path.read_text(encoding="utf-8")
    tree = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    return RunConfig.model_validate(tree)


def read_config(path: Path) -> RunConfig:
    """`load_config` with every fault as one ValueError for the user, a line each."""
    try:
        return load_config(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} is not valid {path.suffix[1:]}: {error}") from None
    except ValidationError as error:
        raise ValueError(
            "\n".join(
                f"{path.name}, {'.'.join(str(at) for at in fault['loc']) or 'all'}: "
                f"{fault['msg'].removeprefix('Value error, ')}"
                for fault in error.errors()
            )
        ) from None
