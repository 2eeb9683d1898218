from django.db import migrations


class Migration(migrations.Migration):
    """The previous release reads the column, so it is dropped a release later."""

    dependencies = [("runs", "0006_active_at")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[migrations.RemoveField("run", "place")]
        )
    ]
