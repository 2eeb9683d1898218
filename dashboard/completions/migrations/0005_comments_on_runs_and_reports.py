import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q

# The earlier columns have no place for them. A table with deferred foreign keys to check
# cannot be altered, so they are checked at once.
DELETE_OTHERS = """
SET CONSTRAINTS ALL IMMEDIATE;
DELETE FROM samples_mention WHERE comment_id IN
    (SELECT id FROM samples_comment WHERE group_id IS NULL);
DELETE FROM samples_comment WHERE group_id IS NULL;
"""


class Migration(migrations.Migration):
    """Lets comments be on runs and reports, too."""

    dependencies = [
        ("reports", "0001_initial"),
        ("runs", "0001_squashed"),
        ("samples", "0004_mismatch"),
    ]

    operations = [
        migrations.AlterField(
            model_name="comment",
            name="group",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="comments",
                to="samples.group",
            ),
        ),
        migrations.RunSQL(migrations.RunSQL.noop, DELETE_OTHERS),
        migrations.AddField(
            model_name="comment",
            name="run",
            field=models.ForeignKey(
                db_column="commented_run_id",
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="comments",
                to="runs.run",
            ),
        ),
        migrations.AddField(
            model_name="comment",
            name="report",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="comments",
                to="reports.report",
            ),
        ),
        migrations.AddConstraint(
            model_name="comment",
            constraint=models.CheckConstraint(
                condition=(
                    Q(group__isnull=False, run=None, report=None)
                    | Q(group=None, position=None, run__isnull=False, report=None)
                    | Q(group=None, position=None, run=None, report__isnull=False)
                ),
                name="comment_has_one_target",
            ),
        ),
    ]
