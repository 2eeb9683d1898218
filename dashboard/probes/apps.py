from django.apps import AppConfig


class ProbesConfig(AppConfig):
    name = "dashboard.probes"
    label = "probes"
