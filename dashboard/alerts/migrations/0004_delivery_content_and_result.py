from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Renames fields of the model; the columns keep their names."""

    dependencies = [("alerts", "0003_warnings_are_rules")]

    operations = [
        migrations.AlterField(
            model_name="delivery",
            name="told",
            field=models.JSONField(db_column="told", default=dict),
        ),
        migrations.RenameField("delivery", "told", "content"),
        migrations.AlterField(
            model_name="delivery",
            name="said",
            field=models.CharField(blank=True, db_column="said", max_length=300),
        ),
        migrations.RenameField("delivery", "said", "result"),
    ]
