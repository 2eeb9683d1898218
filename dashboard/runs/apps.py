from django.apps import AppConfig


class RunsConfig(AppConfig):
    name = "dashboard.runs"
    label = "runs"
