import django.contrib.postgres.fields
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from dashboard.project.first_migrations import FirstMigration


class Migration(FirstMigration):
    replaces = [
        ("probes", "0001_probes"),
        ("probes", "0002_tries"),
        ("probes", "0003_jobs"),
        ("probes", "0004_state_of_jobs"),
    ]

    initial = True

    dependencies = [
        ("accounts", "0001_squashed"),
        ("datasets", "0001_squashed"),
        ("jobs", "0001_initial"),
        ("rewards", "0001_initial"),
        ("runs", "0001_squashed"),
    ]

    operations = [
        migrations.CreateModel(
            name="Probe",
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
                ("model_label", models.CharField(max_length=200)),
                ("config", models.JSONField()),
                (
                    "positions",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.PositiveIntegerField(), size=None
                    ),
                ),
                ("num_samples", models.PositiveSmallIntegerField()),
                ("is_sample", models.BooleanField(default=False)),
                ("prompt", models.TextField(blank=True, db_default="", default="")),
                ("is_scored", models.BooleanField(db_default=True, default=True)),
                ("metrics", models.JSONField(default=dict)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "checkpoint",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="tries",
                        to="runs.checkpoint",
                    ),
                ),
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
                    "dataset_version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="probes",
                        to="datasets.datasetversion",
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
                        related_name="probes",
                        to="rewards.recipeversion",
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="probes",
                        to="accounts.team",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        fields=["team", "-id"], name="probes_prob_team_id_20d4aa_idx"
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("checkpoint__isnull", False),
                            models.Q(
                                ("is_scored", True),
                                ("positions__len__gt", 0),
                                ("prompt", ""),
                            ),
                            _connector="OR",
                        ),
                        name="probe_without_checkpoint_scores_rows",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ProbeGroup",
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
                ("position", models.PositiveIntegerField()),
                ("is_base", models.BooleanField(db_default=False, default=False)),
                ("completions", models.JSONField()),
                (
                    "probe",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="groups",
                        to="probes.probe",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("probe", "position", "is_base"), name="probe_group_once"
                    )
                ],
            },
        ),
    ]
