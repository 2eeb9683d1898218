import django.db.models.deletion
from django.db import migrations, models

# Imports that wait or run are begun anew; no worker of the older version is left.
COPY = """
INSERT INTO jobs_job (
    kind, target_id, team_id, created_by_id, state, cancel_requested, attempt,
    num_losses, worker, done, total, unit, message, error, created_at, finished_at
)
SELECT
    CASE WHEN kind = 'fetch' THEN 'dataset.fetch'
         WHEN upload_id IS NULL THEN 'dataset.select' ELSE 'dataset.import' END,
    id, team_id, created_by_id,
    CASE WHEN state = 'running' AND stop_requested THEN 'cancelled'
         WHEN state = 'running' THEN 'queued' WHEN state = 'refused' THEN 'failed'
         ELSE state END,
    false, attempt, 0, '', num_read, num_to_read,
    CASE WHEN kind = 'fetch' OR upload_id IS NOT NULL THEN 'bytes' ELSE 'rows' END,
    '', CASE state WHEN 'failed' THEN problem ELSE '' END, created_at,
    CASE WHEN state = 'running' AND stop_requested THEN now() ELSE ended_at END
FROM datasets_importjob;
UPDATE datasets_importjob SET job_id = jobs_job.id FROM jobs_job
WHERE jobs_job.target_id = datasets_importjob.id
  AND jobs_job.kind IN ('dataset.fetch', 'dataset.select', 'dataset.import');
"""


class Migration(migrations.Migration):
    dependencies = [
        ("datasets", "0001_initial"),
        ("jobs", "0001_initial"),
    ]

    operations = [
        migrations.RemoveField(
            model_name="roworder",
            name="asked_at",
        ),
        migrations.RemoveField(
            model_name="tokenlengths",
            name="moved_at",
        ),
        migrations.RemoveField(
            model_name="versiondifference",
            name="moved_at",
        ),
        migrations.RemoveField(
            model_name="versionleak",
            name="moved_at",
        ),
        migrations.RemoveField(
            model_name="versionsplit",
            name="moved_at",
        ),
        migrations.RemoveField(
            model_name="versionstatistics",
            name="moved_at",
        ),
        migrations.DeleteModel(
            name="QueuedTask",
        ),
        migrations.AddField(
            model_name="importjob",
            name="job",
            field=models.OneToOneField(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="%(class)s",
                to="jobs.job",
            ),
        ),
        migrations.RunSQL(COPY, migrations.RunSQL.noop),
    ]
