from django.apps import AppConfig


class LocalConfig(AppConfig):
    name = "dashboard.local"
    label = "local"
