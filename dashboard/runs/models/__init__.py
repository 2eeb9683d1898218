from dashboard.runs.models.checkpoints import Checkpoint, PublishedModel
from dashboard.runs.models.evaluations import Evaluation, EvaluationSet
from dashboard.runs.models.history import Epoch, Rollup, RunEvent, Step
from dashboard.runs.models.lists import (
    DefaultView,
    MetricSummary,
    RunStar,
    SavedView,
)
from dashboard.runs.models.run import (
    ENDED,
    HELD,
    REWARD,
    Priority,
    Run,
    RunGroup,
    RunState,
)
from dashboard.runs.models.settings import ChartSettings, SettingChange, TeamPreset

__all__ = [
    "ENDED",
    "HELD",
    "REWARD",
    "ChartSettings",
    "Checkpoint",
    "DefaultView",
    "Epoch",
    "Evaluation",
    "EvaluationSet",
    "MetricSummary",
    "Priority",
    "PublishedModel",
    "Rollup",
    "Run",
    "RunEvent",
    "RunGroup",
    "RunStar",
    "RunState",
    "SavedView",
    "SettingChange",
    "Step",
    "TeamPreset",
]
