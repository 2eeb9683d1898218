from django.apps import AppConfig


class DatasetsConfig(AppConfig):
    name = "dashboard.datasets"
    label = "datasets"
