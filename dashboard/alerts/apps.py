from importlib import import_module

from django.apps import AppConfig


class AlertsConfig(AppConfig):
    name = "dashboard.alerts"
    label = "alerts"

    def ready(self) -> None:
        import_module("dashboard.alerts.delivery")  # connects its signal receiver
