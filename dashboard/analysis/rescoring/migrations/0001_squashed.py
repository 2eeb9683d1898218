import django.contrib.postgres.fields
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from dashboard.project.first_migrations import FirstMigration


class Migration(FirstMigration):
    replaces = [
        ("rescoring", "0001_rescorings"),
        ("rescoring", "0002_jobs"),
        ("rescoring", "0003_state_of_jobs"),
    ]

    initial = True

    dependencies = [
        ("accounts", "0001_squashed"),
        ("jobs", "0001_initial"),
        ("rewards", "0001_initial"),
        ("runs", "0001_squashed"),
    ]

    operations = [
        migrations.CreateModel(
            name="Rescoring",
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
                ("spec", models.JSONField(blank=True, null=True)),
                ("first_step", models.PositiveIntegerField()),
                ("last_step", models.PositiveIntegerField()),
                ("every", models.PositiveIntegerField()),
                (
                    "steps",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.PositiveIntegerField(), size=None
                    ),
                ),
                ("num_steps_found", models.PositiveIntegerField()),
                ("num_completions", models.PositiveIntegerField()),
                ("num_found", models.PositiveIntegerField()),
                ("result", models.JSONField(default=dict)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "job",
                    models.OneToOneField(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="%(class)s",
                        to="jobs.job",
                    ),
                ),
                (
                    "recipe_version",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="rewards.recipeversion",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="rescorings",
                        to="runs.run",
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="rescorings",
                        to="accounts.team",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        fields=["team", "-id"], name="rescoring_r_team_id_676b97_idx"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="RescoredStep",
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
                ("num_completions", models.PositiveIntegerField()),
                ("groups", models.BinaryField()),
                ("completions", models.BinaryField()),
                (
                    "rule_names",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=40),
                        default=list,
                        size=None,
                    ),
                ),
                ("scores", models.BinaryField()),
                ("old_scores", models.BinaryField()),
                ("num_failures", models.PositiveIntegerField(default=0)),
                ("failures", models.JSONField(default=list)),
                ("problem", models.TextField(blank=True)),
                (
                    "rescoring",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="scored",
                        to="rescoring.rescoring",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("rescoring", "step"), name="rescored_step_once"
                    )
                ],
            },
        ),
    ]
