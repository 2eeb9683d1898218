from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("training", "0002_drained_workers_and_system_samples")]

    operations = [
        migrations.CreateModel(
            name="ReaperWatch",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True,
                        primary_key=True,
                        serialize=False,
                        verbose_name="ID",
                    ),
                ),
                ("since", models.DateTimeField()),
                ("looked_at", models.DateTimeField()),
            ],
        ),
    ]
