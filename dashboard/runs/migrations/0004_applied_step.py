from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0003_ingest_lag")]

    operations = [
        migrations.AlterField(
            "settingchange",
            "heard_step",
            models.PositiveIntegerField(null=True, db_column="heard_step"),
        ),
        migrations.RenameField("settingchange", "heard_step", "applied_step"),
    ]
