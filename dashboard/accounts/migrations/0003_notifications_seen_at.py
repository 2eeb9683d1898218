from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0002_audit_entries_stay")]

    operations = [
        migrations.AddField(
            model_name="membership",
            name="notifications_seen_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
    ]
