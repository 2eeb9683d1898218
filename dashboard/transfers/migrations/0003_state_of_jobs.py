from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("exchange", "0002_jobs")]

    operations = [
        migrations.RemoveConstraint(
            model_name="runimport",
            name="run_import_running_has_heartbeat",
        ),
        migrations.RemoveConstraint(
            model_name="runimport",
            name="run_import_queued_has_time",
        ),
        migrations.RemoveField(
            model_name="runimport",
            name="attempt",
        ),
        migrations.RemoveField(
            model_name="runimport",
            name="ended_at",
        ),
        migrations.RemoveField(
            model_name="runimport",
            name="heartbeat",
        ),
        migrations.RemoveField(
            model_name="runimport",
            name="num_read",
        ),
        migrations.RemoveField(
            model_name="runimport",
            name="num_steps",
        ),
        migrations.RemoveField(
            model_name="runimport",
            name="num_stored",
        ),
        migrations.RemoveField(
            model_name="runimport",
            name="num_to_read",
        ),
        migrations.RemoveField(
            model_name="runimport",
            name="phase",
        ),
        migrations.RemoveField(
            model_name="runimport",
            name="problem",
        ),
        migrations.RemoveField(
            model_name="runimport",
            name="queued_at",
        ),
        migrations.RemoveField(
            model_name="runimport",
            name="state",
        ),
        migrations.RemoveField(
            model_name="runimport",
            name="stop_requested",
        ),
    ]
