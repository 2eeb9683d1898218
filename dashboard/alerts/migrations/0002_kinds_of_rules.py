from __future__ import annotations

from django.db import migrations, models

KINDS = (
    "above", "below", "changes", "missing", "constant", "share_of_first",
    "times_first", "times_usual", "share_of_usual", "overfits", "warned",
)  # fmt: skip


class Migration(migrations.Migration):
    dependencies = [("alerts", "0001_initial")]

    operations = [
        migrations.AlterField(
            model_name="rule",
            name="kind",
            field=models.CharField(
                choices=[(kind, kind) for kind in KINDS], max_length=20
            ),
        ),
    ]
