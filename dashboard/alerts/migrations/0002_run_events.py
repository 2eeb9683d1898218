import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

import dashboard.alerts.models


class Migration(migrations.Migration):
    dependencies = [
        ("alerts", "0001_initial"),
        ("runs", "0013_imported_runs"),
    ]

    operations = [
        migrations.AddField(
            model_name="channel",
            name="events",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(
                    choices=[
                        ("alert.fired", "An alert fires"),
                        ("run.finished", "A run finishes"),
                        ("run.failed", "A run fails"),
                        ("run.stopped", "A run stops"),
                        ("run.paused", "A run pauses"),
                    ],
                    max_length=20,
                ),
                default=dashboard.alerts.models.alerts_alone,
                size=None,
            ),
        ),
        migrations.AddField(
            model_name="channel",
            name="gave_up",
            field=models.CharField(blank=True, max_length=300),
        ),
        migrations.AddField(
            model_name="channel",
            name="num_failed",
            field=models.PositiveSmallIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="delivery",
            name="event",
            field=models.CharField(default="alert.fired", max_length=20),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="delivery",
            name="run",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="deliveries",
                to="runs.run",
            ),
        ),
        migrations.AddField(
            model_name="delivery",
            name="told",
            field=models.JSONField(default=dict),
        ),
        migrations.RunSQL(
            "UPDATE alerts_delivery SET event = 'test' WHERE alert_id IS NULL",
            migrations.RunSQL.noop,
        ),
    ]
