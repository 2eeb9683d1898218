from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Tries take the place of chats, whose questions and answers are deleted."""

    dependencies = [
        ("probes", "0001_probes"),
        ("runs", "0002_storage"),
    ]

    operations = [
        migrations.DeleteModel(name="Chat"),
        migrations.AddField(
            model_name="probe",
            name="checkpoint",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="tries",
                to="runs.checkpoint",
            ),
        ),
        migrations.AddField(
            model_name="probe",
            name="prompt",
            field=models.TextField(blank=True, db_default="", default=""),
        ),
        migrations.AddField(
            model_name="probe",
            name="is_scored",
            field=models.BooleanField(db_default=True, default=True),
        ),
        migrations.AddConstraint(
            model_name="probe",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("checkpoint__isnull", False),
                    models.Q(
                        ("is_scored", True), ("positions__len__gt", 0), ("prompt", "")
                    ),
                    _connector="OR",
                ),
                name="probe_without_checkpoint_scores_rows",
            ),
        ),
        migrations.AddField(
            model_name="probegroup",
            name="is_base",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.RemoveConstraint(model_name="probegroup", name="probe_group_once"),
        migrations.AddConstraint(
            model_name="probegroup",
            constraint=models.UniqueConstraint(
                fields=("probe", "position", "is_base"), name="probe_group_once"
            ),
        ),
    ]
