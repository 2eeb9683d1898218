from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("alerts", "0002_run_events"),
    ]

    operations = [
        migrations.AddConstraint(
            model_name="delivery",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("alert__isnull", False),
                        ("event", "alert.fired"),
                        ("run", None),
                    ),
                    models.Q(
                        ("alert", None),
                        ("event__startswith", "run."),
                        ("run__isnull", False),
                    ),
                    models.Q(
                        ("alert", None),
                        ("event__in", ["test", "channel.off"]),
                        ("run", None),
                    ),
                    _connector="OR",
                ),
                name="delivery_is_about_its_event",
            ),
        ),
    ]
