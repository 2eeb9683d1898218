from dashboard.runs.models.checkpoints import Checkpoint, PublishedModel
from dashboard.runs.models.history import (
    Evaluation,
    EvaluationSet,
    Rollup,
    RunAttempt,
    RunEvent,
    Step,
)
from dashboard.runs.models.preferences import (
    ChartSettings,
    DefaultView,
    MetricSummary,
    PinnedMetrics,
    RunStar,
    SavedView,
    SettingChange,
    TeamPreset,
)
from dashboard.runs.models.run import (
    ENDED,
    HELD,
    REWARD,
    Priority,
    Run,
    RunState,
    Sweep,
)

__all__ = [
    "ENDED",
    "HELD",
    "REWARD",
    "ChartSettings",
    "Checkpoint",
    "DefaultView",
    "Evaluation",
    "EvaluationSet",
    "MetricSummary",
    "PinnedMetrics",
    "Priority",
    "PublishedModel",
    "Rollup",
    "Run",
    "RunAttempt",
    "RunEvent",
    "RunStar",
    "RunState",
    "SavedView",
    "SettingChange",
    "Step",
    "Sweep",
    "TeamPreset",
]
