"""What a run is told to do: one frozen, typed tree, refused early.

The web half imports this module, so it imports no torch. Every field has a default
(but for the model, the rows and the rules), a bound, a line of help and, where it is
a quantity, a unit; the launch form is made from exactly these.
"""

from trainer.config.changes import MAY_CHANGE, Change, ChangeList, change_settings
from trainer.config.model_paths import HUB_ID, named_models, without_model_paths
from trainer.config.objective import AdvantageConfig, LossConfig, ReferenceConfig
from trainer.config.packages import (
    PackageNeed,
    installed_packages,
    needed_packages,
    require_packages,
)
from trainer.config.part import Part
from trainer.config.phases import Phase
from trainer.config.reading import has_long_key, load_config, read_config
from trainer.config.run import RunConfig, Stage
from trainer.config.task import DataConfig, ModelConfig, RewardConfig, RolloutConfig
from trainer.config.training import (
    CheckpointConfig,
    DistributedConfig,
    EvaluationConfig,
    LoggingConfig,
    OptimConfig,
    learning_rate,
)

__all__ = [
    "HUB_ID",
    "MAY_CHANGE",
    "AdvantageConfig",
    "Change",
    "ChangeList",
    "CheckpointConfig",
    "DataConfig",
    "DistributedConfig",
    "EvaluationConfig",
    "LoggingConfig",
    "LossConfig",
    "ModelConfig",
    "OptimConfig",
    "PackageNeed",
    "Part",
    "Phase",
    "ReferenceConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "Stage",
    "change_settings",
    "has_long_key",
    "installed_packages",
    "learning_rate",
    "load_config",
    "named_models",
    "needed_packages",
    "read_config",
    "require_packages",
    "without_model_paths",
]
