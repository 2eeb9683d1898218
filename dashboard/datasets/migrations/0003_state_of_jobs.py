from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("datasets", "0002_jobs"),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="importjob",
            name="import_job_one_at_a_time",
        ),
        migrations.RemoveConstraint(
            model_name="importjob",
            name="import_job_once",
        ),
        migrations.RemoveConstraint(
            model_name="importjob",
            name="import_job_ended_when_over",
        ),
        migrations.RemoveConstraint(
            model_name="importjob",
            name="import_job_running_has_heartbeat",
        ),
        migrations.RemoveIndex(
            model_name="importjob",
            name="import_job_live",
        ),
        migrations.RemoveField(
            model_name="importjob",
            name="attempt",
        ),
        migrations.RemoveField(
            model_name="importjob",
            name="ended_at",
        ),
        migrations.RemoveField(
            model_name="importjob",
            name="heartbeat",
        ),
        migrations.RemoveField(
            model_name="importjob",
            name="num_read",
        ),
        migrations.RemoveField(
            model_name="importjob",
            name="num_rows",
        ),
        migrations.RemoveField(
            model_name="importjob",
            name="num_rows_stored",
        ),
        migrations.RemoveField(
            model_name="importjob",
            name="problem",
        ),
        migrations.RemoveField(
            model_name="importjob",
            name="queued_at",
        ),
        migrations.RemoveField(
            model_name="importjob",
            name="state",
        ),
        migrations.RemoveField(
            model_name="importjob",
            name="stop_requested",
        ),
        migrations.RemoveField(
            model_name="importjob",
            name="worker",
        ),
    ]
