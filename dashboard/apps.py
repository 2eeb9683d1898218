"""Apps whose tables and queued tasks keep the names that they had before the move."""

from django.apps import AppConfig


class CompletionsConfig(AppConfig):
    name = "dashboard.completions"
    label = "samples"


class SupervisionConfig(AppConfig):
    name = "dashboard.supervision"
    label = "training"


class TransfersConfig(AppConfig):
    name = "dashboard.transfers"
    label = "exchange"
