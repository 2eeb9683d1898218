from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("rescoring", "0002_jobs")]

    operations = [
        migrations.RemoveConstraint(
            model_name="rescoring",
            name="rescoring_held_has_lease",
        ),
        migrations.RemoveIndex(
            model_name="rescoring",
            name="rescoring_open",
        ),
        migrations.RemoveField(
            model_name="rescoring",
            name="claim",
        ),
        migrations.RemoveField(
            model_name="rescoring",
            name="error",
        ),
        migrations.RemoveField(
            model_name="rescoring",
            name="finished_at",
        ),
        migrations.RemoveField(
            model_name="rescoring",
            name="lease_until",
        ),
        migrations.RemoveField(
            model_name="rescoring",
            name="num_done",
        ),
        migrations.RemoveField(
            model_name="rescoring",
            name="num_losses",
        ),
        migrations.RemoveField(
            model_name="rescoring",
            name="served_at",
        ),
        migrations.RemoveField(
            model_name="rescoring",
            name="started_at",
        ),
        migrations.RemoveField(
            model_name="rescoring",
            name="state",
        ),
        migrations.RemoveField(
            model_name="rescoring",
            name="worker",
        ),
    ]
