from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0005_pinned_metrics")]

    operations = [
        migrations.AddField(
            model_name="run",
            name="active_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
    ]
