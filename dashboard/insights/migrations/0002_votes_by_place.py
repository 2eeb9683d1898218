import django.db.models.deletion
from django.db import migrations, models
from django.db.models import F, Q

# The order of two completions was that of their ids; now it is that of their places.
FORWARDS = """
SET CONSTRAINTS ALL IMMEDIATE;
UPDATE insights_vote vote
   SET first_group_id = CASE WHEN is_kept THEN a.group_id ELSE b.group_id END,
       first_position = CASE WHEN is_kept THEN a.position ELSE b.position END,
       second_group_id = CASE WHEN is_kept THEN b.group_id ELSE a.group_id END,
       second_position = CASE WHEN is_kept THEN b.position ELSE a.position END,
       choice = CASE WHEN is_kept OR choice = 'tie' THEN choice
                     WHEN choice = 'first' THEN 'second' ELSE 'first' END
  FROM samples_completion a, samples_completion b,
       LATERAL (SELECT (a.group_id, a.position) < (b.group_id, b.position) AS is_kept)
       in_order
 WHERE a.id = vote.first_id AND b.id = vote.second_id;
SET CONSTRAINTS ALL DEFERRED;
"""
BACKWARDS = """
SET CONSTRAINTS ALL IMMEDIATE;
UPDATE insights_vote vote
   SET first_id = least(a.id, b.id), second_id = greatest(a.id, b.id),
       choice = CASE WHEN a.id < b.id OR choice = 'tie' THEN choice
                     WHEN choice = 'first' THEN 'second' ELSE 'first' END
  FROM samples_completion a, samples_completion b
 WHERE a.group_id = vote.first_group_id AND a.position = vote.first_position
   AND b.group_id = vote.second_group_id AND b.position = vote.second_position;
SET CONSTRAINTS ALL DEFERRED;
"""


def _completion(**options):
    return models.ForeignKey(
        on_delete=django.db.models.deletion.CASCADE,
        related_name="+",
        to="samples.completion",
        **options,
    )


def _group(**options):
    return models.ForeignKey(
        on_delete=django.db.models.deletion.CASCADE,
        related_name="+",
        to="samples.group",
        **options,
    )


class Migration(migrations.Migration):
    dependencies = [
        ("insights", "0001_votes"),
        ("samples", "0016_pack_completions"),
    ]

    operations = [
        migrations.AddField("vote", "first_group", _group(null=True)),
        migrations.AddField(
            "vote", "first_position", models.PositiveSmallIntegerField(null=True)
        ),
        migrations.AddField("vote", "second_group", _group(null=True)),
        migrations.AddField(
            "vote", "second_position", models.PositiveSmallIntegerField(null=True)
        ),
        migrations.RemoveConstraint("vote", "one_vote_a_person_and_pair"),
        migrations.RemoveConstraint("vote", "vote_in_order"),
        migrations.AlterField("vote", "first", _completion(null=True)),
        migrations.AlterField("vote", "second", _completion(null=True)),
        migrations.RunSQL(FORWARDS, BACKWARDS),
        migrations.RemoveField("vote", "first"),
        migrations.RemoveField("vote", "second"),
        migrations.AlterField("vote", "first_group", _group()),
        migrations.AlterField(
            "vote", "first_position", models.PositiveSmallIntegerField()
        ),
        migrations.AlterField("vote", "second_group", _group()),
        migrations.AlterField(
            "vote", "second_position", models.PositiveSmallIntegerField()
        ),
        migrations.AddConstraint(
            "vote",
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
        ),
        migrations.AddConstraint(
            "vote",
            models.CheckConstraint(
                condition=Q(first_group__lt=F("second_group"))
                | Q(
                    first_group=F("second_group"),
                    first_position__lt=F("second_position"),
                ),
                name="vote_in_order",
            ),
        ),
    ]
