import django.db.models.deletion
from django.db import migrations, models

# Probes that wait or run are begun anew; no worker of the older version is left.
COPY = """
INSERT INTO jobs_job (
    kind, target_id, team_id, created_by_id, state, cancel_requested, attempt,
    num_losses, worker, done, total, unit, message, error, created_at, started_at,
    finished_at
)
SELECT
    'probe', id, team_id, created_by_id,
    CASE state WHEN 'running' THEN 'queued' WHEN 'finished' THEN 'done'
         WHEN 'stopped' THEN 'cancelled' WHEN 'stopping' THEN 'cancelled'
         ELSE state END,
    false, 0, 0, '', num_done, cardinality(positions), 'prompts', '', error, created_at,
    started_at, CASE state WHEN 'stopping' THEN now() ELSE finished_at END
FROM probes_probe;
UPDATE probes_probe SET job_id = jobs_job.id FROM jobs_job
WHERE jobs_job.target_id = probes_probe.id AND jobs_job.kind = 'probe';
"""


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0001_initial"),
        ("probes", "0002_tries"),
    ]

    operations = [
        migrations.AddField(
            model_name="probe",
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
