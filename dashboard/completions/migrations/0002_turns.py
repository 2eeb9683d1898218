from django.db import migrations, models


class Migration(migrations.Migration):
    """Adds the turns of episodes, which rewrites no row."""

    dependencies = [("samples", "0001_squashed")]

    operations = [
        migrations.AddField(
            model_name="groupcompletions",
            name="turns",
            field=models.JSONField(null=True),
        ),
        *(
            migrations.AddField(
                model_name="completionblock",
                name=name,
                field=models.BinaryField(default=b"", db_default=b""),
            )
            for name in ("turns", "waits")
        ),
    ]
