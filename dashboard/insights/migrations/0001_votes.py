import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0001_initial"),
        ("accounts", "__first__"),
        ("samples", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Vote",
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
                ("first_position", models.PositiveSmallIntegerField()),
                ("second_position", models.PositiveSmallIntegerField()),
                (
                    "choice",
                    models.CharField(
                        choices=[
                            ("first", "First"),
                            ("second", "Second"),
                            ("tie", "Tie"),
                        ],
                        max_length=6,
                    ),
                ),
                ("voted_at", models.DateTimeField(auto_now=True)),
                (
                    "first_group",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="samples.group",
                    ),
                ),
                (
                    "second_group",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="samples.group",
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="accounts.team",
                    ),
                ),
                (
                    "voter",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=(
                            "voter",
                            "first_group",
                            "first_position",
                            "second_group",
                            "second_position",
                        ),
                        name="one_vote_a_person_and_pair",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("first_group__lt", models.F("second_group")),
                            models.Q(
                                ("first_group", models.F("second_group")),
                                ("first_position__lt", models.F("second_position")),
                            ),
                            _connector="OR",
                        ),
                        name="vote_in_order",
                    ),
                ],
            },
        ),
    ]
