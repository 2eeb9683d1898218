from django.apps import AppConfig


class TrainingConfig(AppConfig):
    name = "dashboard.training"
    label = "training"
