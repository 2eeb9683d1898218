import django.db.models.deletion
from django.db import migrations, models

# Imports that wait or run are begun anew; no worker of the older version is left.
COPY = """
INSERT INTO jobs_job (
    kind, target_id, team_id, created_by_id, state, cancel_requested, attempt,
    num_losses, worker, done, total, unit, message, error, created_at, finished_at
)
SELECT
    'run_import.' || phase, id, team_id, created_by_id,
    CASE WHEN state = 'running' AND stop_requested THEN 'cancelled'
         WHEN state = 'running' THEN 'queued' ELSE state END,
    false, attempt, 0, '', num_read, num_to_read, 'bytes', '', problem,
    coalesce(queued_at, created_at),
    CASE WHEN state = 'running' AND stop_requested THEN now() ELSE ended_at END
FROM exchange_runimport WHERE state <> 'open';
UPDATE exchange_runimport SET job_id = jobs_job.id FROM jobs_job
WHERE jobs_job.target_id = exchange_runimport.id
  AND jobs_job.kind IN ('run_import.read', 'run_import.make');
"""


class Migration(migrations.Migration):
    dependencies = [
        ("exchange", "0001_imports_of_runs"),
        ("jobs", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="runimport",
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
