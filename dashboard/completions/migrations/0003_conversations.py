from django.db import migrations, models


class Migration(migrations.Migration):
    """Adds what prompts were made of, which rewrites no row."""

    dependencies = [("samples", "0002_turns")]

    operations = [
        migrations.AddField(
            model_name="group",
            name="begun",
            field=models.TextField(default="", db_default=""),
        ),
        migrations.AddField(
            model_name="group",
            name="messages",
            field=models.JSONField(null=True),
        ),
    ]
