from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("probes", "0003_jobs")]

    operations = [
        migrations.RemoveConstraint(
            model_name="probe",
            name="probe_held_has_lease",
        ),
        migrations.RemoveIndex(
            model_name="probe",
            name="probe_open",
        ),
        migrations.RemoveField(
            model_name="probe",
            name="claim",
        ),
        migrations.RemoveField(
            model_name="probe",
            name="error",
        ),
        migrations.RemoveField(
            model_name="probe",
            name="finished_at",
        ),
        migrations.RemoveField(
            model_name="probe",
            name="lease_until",
        ),
        migrations.RemoveField(
            model_name="probe",
            name="num_done",
        ),
        migrations.RemoveField(
            model_name="probe",
            name="phase",
        ),
        migrations.RemoveField(
            model_name="probe",
            name="started_at",
        ),
        migrations.RemoveField(
            model_name="probe",
            name="state",
        ),
        migrations.RemoveField(
            model_name="probe",
            name="worker",
        ),
    ]
