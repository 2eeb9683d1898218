from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class JobsConfig(AppConfig):
    name = "dashboard.jobs"
    label = "jobs"

    def ready(self) -> None:
        """Each app registers its kinds of jobs in its `jobs` module."""
        autodiscover_modules("jobs")
