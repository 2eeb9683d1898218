from django.db import migrations


class Migration(migrations.Migration):
    """Votes were kept here."""

    initial = True
    operations = [
        migrations.RunSQL("DROP TABLE IF EXISTS insights_vote", migrations.RunSQL.noop)
    ]
