from django.apps import AppConfig


class SamplesConfig(AppConfig):
    name = "dashboard.samples"
    label = "samples"
