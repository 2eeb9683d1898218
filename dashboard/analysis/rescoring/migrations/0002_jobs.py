import django.db.models.deletion
from django.db import migrations, models

# Rescorings that wait or run go on; no worker of the older version is left.
COPY = """
INSERT INTO jobs_job (
    kind, target_id, team_id, created_by_id, state, cancel_requested, attempt,
    num_losses, worker, done, total, unit, message, error, created_at, started_at,
    finished_at
)
SELECT
    'rescoring', id, team_id, created_by_id,
    CASE state WHEN 'running' THEN 'queued' WHEN 'finished' THEN 'done'
         WHEN 'stopped' THEN 'cancelled' WHEN 'stopping' THEN 'cancelled'
         ELSE state END,
    false, 0, 0, '', num_done, num_completions, 'completions', '', error, created_at,
    started_at, CASE state WHEN 'stopping' THEN now() ELSE finished_at END
FROM rescoring_rescoring;
UPDATE rescoring_rescoring SET job_id = jobs_job.id FROM jobs_job
WHERE jobs_job.target_id = rescoring_rescoring.id AND jobs_job.kind = 'rescoring';
"""


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0001_initial"),
        ("rescoring", "0001_rescorings"),
    ]

    operations = [
        migrations.AddField(
            model_name="rescoring",
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
