from importlib import import_module

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "dashboard.accounts"
    label = "accounts"

    def ready(self) -> None:
        import_module("dashboard.accounts.revocation")  # its receivers
