"""The Celery app. Queue `default` is for web work, `training` for supervised runs."""

from __future__ import annotations

import os

from celery import Celery
from django.conf import settings

from dashboard.database import limit_sessions

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
limit_sessions(settings.DATABASES, statement_seconds=120, pooled=False)

app = Celery("cohort")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.beat_schedule = {
    "dispatch": {
        "task": "training.dispatch",
        "schedule": 5.0,
        "options": {"expires": 5},
    },
    "reap": {"task": "training.reap", "schedule": 15.0, "options": {"expires": 15}},
}
app.autodiscover_tasks(["dashboard.datasets", "dashboard.training"])
