from importlib import import_module

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "dashboard.accounts"
    label = "accounts"

    def ready(self) -> None:
        # Their receivers.
        import_module("dashboard.accounts.noting")
        import_module("dashboard.accounts.providers")
        import_module("dashboard.accounts.revocation")
