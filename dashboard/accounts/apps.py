from importlib import import_module

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "dashboard.accounts"
    label = "accounts"

    def ready(self) -> None:
        # Their receivers.
        import_module("dashboard.accounts.services")
        import_module("dashboard.accounts.adapters")
        import_module("dashboard.accounts.sessions")
