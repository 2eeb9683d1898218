import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Adds the gap between sampler and trainer, which rewrites no row."""

    dependencies = [
        ("runs", "0001_squashed"),
        ("samples", "0003_conversations"),
    ]

    operations = [
        migrations.AddField(
            model_name="group",
            name="age",
            field=models.PositiveIntegerField(null=True),
        ),
        migrations.CreateModel(
            name="MismatchStep",
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
                ("step", models.PositiveIntegerField()),
                ("attempt", models.PositiveIntegerField(db_column="epoch")),
                ("against", models.CharField(max_length=10)),
                ("incomparable", models.CharField(blank=True, max_length=20)),
                ("age", models.PositiveIntegerField(null=True)),
                ("groups", models.BinaryField()),
                ("completions", models.BinaryField()),
                ("bins", models.BinaryField()),
                ("superseded_by", models.PositiveIntegerField(blank=True, null=True)),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="mismatch_steps",
                        to="runs.run",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "step", "attempt"), name="mismatch_once_a_step"
                    )
                ],
            },
        ),
    ]
