from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "dashboard.api"

    def ready(self) -> None:
        import_module("dashboard.api.auth")  # its receiver
