from django.apps import AppConfig


class InsightsConfig(AppConfig):
    name = "dashboard.insights"
    label = "insights"
