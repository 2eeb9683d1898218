"""Configuration of a run: a frozen, typed tree, validated early.

The dashboard imports this module, so it imports no torch. Every field has a default
(except the model, the rows and the rules), bounds, a label, a help text and the other
facts of `About`; the launch form, TOML, help and API are generated from them.
"""

from trainer.config.environment import (
    CODE_OPTIONS,
    GENERIC_TASKSETS,
    EnvironmentConfig,
)
from trainer.config.loss import LossConfig
from trainer.config.objective import AdvantageConfig, ReferenceConfig
from trainer.config.part import About, Part, leaves, parts_of, read_about
from trainer.config.reading import (
    HUB_ID,
    MAY_CHANGE,
    Change,
    ChangeList,
    PackageNeed,
    change_settings,
    has_long_key,
    installed_packages,
    load_config,
    named_models,
    needed_packages,
    parse_toml_text,
    read_config,
    require_packages,
    without_model_paths,
)
from trainer.config.run import CHANGEABLE, Phase, PhaseConfig, RunConfig
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
    learning_rate,
)

__all__ = [
    "CHANGEABLE",
    "CODE_OPTIONS",
    "GENERIC_TASKSETS",
    "HUB_ID",
    "MAY_CHANGE",
    "About",
    "AdvantageConfig",
    "Change",
    "ChangeList",
    "CheckpointConfig",
    "CurriculumConfig",
    "DataConfig",
    "DistributedConfig",
    "EnvironmentConfig",
    "EvaluationConfig",
    "LoggingConfig",
    "LossConfig",
    "ModelConfig",
    "OptimConfig",
    "PackageNeed",
    "Part",
    "Phase",
    "PhaseConfig",
    "ReferenceConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "change_settings",
    "has_long_key",
    "installed_packages",
    "learning_rate",
    "leaves",
    "load_config",
    "named_models",
    "needed_packages",
    "parse_toml_text",
    "parts_of",
    "read_about",
    "read_config",
    "require_packages",
    "restrictions_of",
    "without_model_paths",
]
