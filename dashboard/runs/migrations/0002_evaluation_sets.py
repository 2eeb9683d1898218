import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("datasets", "0010_trash"),
        ("runs", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="EvaluationSet",
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
                ("name", models.CharField(max_length=40)),
                ("max_rows", models.PositiveIntegerField(blank=True, null=True)),
                (
                    "dataset_version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="evaluation_sets",
                        to="datasets.datasetversion",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="evaluation_sets",
                        to="runs.run",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "name"), name="evaluation_set_name_free"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("max_rows__isnull", True),
                            ("max_rows__gt", 0),
                            _connector="OR",
                        ),
                        name="evaluation_set_has_rows",
                    ),
                ],
            },
        ),
    ]
