from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("datasets", "0013_queued_tasks")]

    operations = [
        # They counted a row in every kind that it fits; each is found anew when asked.
        migrations.RunSQL(
            "DELETE FROM datasets_versionstatistics", migrations.RunSQL.noop
        ),
    ]
