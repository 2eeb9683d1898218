from django.apps import AppConfig


class RescoringConfig(AppConfig):
    name = "dashboard.rescoring"
    label = "rescoring"
