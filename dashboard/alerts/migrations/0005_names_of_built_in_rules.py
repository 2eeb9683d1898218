from __future__ import annotations

from typing import Any

from django.db import migrations

from dashboard.alerts.models import BUILT_IN


def rename(apps: Any, _: Any) -> None:
    """Give the teams' built-in rules the names of this version."""
    rules = apps.get_model("alerts", "Rule").objects
    for code, default in BUILT_IN.items():
        rules.filter(built_in=code).update(name=default.name)


class Migration(migrations.Migration):
    dependencies = [("alerts", "0004_delivery_content_and_result")]

    operations = [migrations.RunPython(rename, migrations.RunPython.noop)]
