from __future__ import annotations

from typing import Any

from django.db import migrations

from dashboard.runs.charts.summaries import make_summaries


def fill(apps: Any, _editor: Any) -> None:
    """One run after another; one that was made already is made again."""
    runs = apps.get_model("runs", "Run").objects.order_by("pk")
    for pk in runs.values_list("pk", flat=True).iterator():
        make_summaries(pk)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runs", "0011_run_table")]

    operations = [
        # A run's rows change with each of its steps: room for that on their own pages.
        migrations.RunSQL(
            "ALTER TABLE runs_metricsummary SET (fillfactor = 60)",
            "ALTER TABLE runs_metricsummary RESET (fillfactor)",
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
