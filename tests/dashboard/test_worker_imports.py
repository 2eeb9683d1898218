"""A worker starts within seconds, and each of its processes holds what it loads."""

import os
import sys

from django.urls import reverse

from dashboard.alerts.messages import PATHS
from tests.environment import run_here

BEGIN = """
import sys
from dashboard.celery import app
app.loader.import_default_modules()
from dashboard.alerts.messages import public_link
public_link("run", "alpha", 1)
print("training.dispatch" in app.tasks, "dashboard.urls" in sys.modules)
"""


def test_links_are_those_of_the_pages():
    for name in PATHS:
        values = ["alpha", *range(2, 1 + PATHS[name].count("{}"))]

        assert PATHS[name].format(*values) == reverse(name, args=values), name


def test_a_worker_has_its_tasks_and_loads_no_pages():
    process = run_here(sys.executable, "-c", BEGIN, env=dict(os.environ), check=True)

    assert process.stdout.split() == ["True", "False"]
