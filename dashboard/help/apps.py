from django.apps import AppConfig


class HelpConfig(AppConfig):
    name = "dashboard.help"
    label = "help"
