"""The Celery app. Queue `default` is for web work, `training` for supervised runs."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import task_postrun, task_prerun, worker_shutting_down
from django.conf import settings

from dashboard.accounts.request_context import acting_as
from dashboard.jobs import shutdown
from dashboard.observability.requests import carry_requests
from dashboard.observability.tracing import begin_reporting
from dashboard.project.database import limit_sessions

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
# Django's checks would load every page, which takes seconds and 50 MB. `make check`
# runs them on the code, `manage.py check --deploy` on a server's settings.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")
limit_sessions(settings.DATABASES, statement_seconds=120, pooled=False)

app = Celery("cohort")
carry_requests()
begin_reporting()
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.beat_scheduler = "dashboard.jobs.schedule:Scheduler"
app.conf.beat_schedule = {
    "dispatch": {"task": "training.dispatch", "schedule": 5.0},
    "reap": {"task": "training.reap", "schedule": 5.0},
    "go_on": {"task": "training.go_on", "schedule": 30.0},
    "reap_jobs": {"task": "jobs.reap", "schedule": 5.0},
    "clean": {"task": "jobs.clean", "schedule": 3_600.0},
    "deliver": {"task": "alerts.deliver", "schedule": 5.0},
    "index": {"task": "samples.index", "schedule": 10.0},
    "delete_rows": {"task": "runs.delete_rows", "schedule": 10.0},
    "measure": {"task": "operations.measure", "schedule": 600.0},
    "retain": {"task": "operations.retain", "schedule": 3_600.0},
}
# Where the tasks are.
app.conf.imports = (
    "dashboard.jobs.tasks",
    "dashboard.runs.trash",
    "dashboard.completions.search.indexing",
    "dashboard.alerts.delivery",
    "dashboard.supervision.tasks",
    "dashboard.operations.retention",
)


@worker_shutting_down.connect
def announce_shutdown(**_: Any) -> None:
    shutdown.announce()


@task_prerun.connect
def begin_task(task: Any, **_: Any) -> None:
    """What a task does by itself bears its name in the audit log."""
    acting_as(task.name)
    shutdown.begin_task()


@task_postrun.connect
def end_task(**_: Any) -> None:
    acting_as(None)
    shutdown.end_task()
