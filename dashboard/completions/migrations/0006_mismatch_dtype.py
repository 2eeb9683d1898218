from django.db import migrations, models


class Migration(migrations.Migration):
    """Adds the number format that other trainers report, which rewrites no row."""

    dependencies = [("samples", "0005_comments_on_runs_and_reports")]

    operations = [
        migrations.AddField(
            model_name="mismatchstep",
            name="dtype",
            field=models.CharField(
                blank=True, db_default="", default="", max_length=10
            ),
        ),
    ]
