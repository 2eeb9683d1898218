import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0001_squashed"),
        ("runs", "0002_no_column_place"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="savedview",
            name="run_view_name_free",
        ),
        migrations.AddField(
            model_name="defaultview",
            name="board",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="runs.savedview",
            ),
        ),
        migrations.AddField(
            model_name="savedview",
            name="page",
            field=models.CharField(
                choices=[("runs", "view"), ("metrics", "board")],
                db_default="runs",
                default="runs",
                max_length=10,
            ),
        ),
        migrations.AlterField(
            model_name="defaultview",
            name="view",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="runs.savedview",
            ),
        ),
        migrations.AddConstraint(
            model_name="savedview",
            constraint=models.UniqueConstraint(
                fields=("team", "owner", "page", "name"), name="view_name_free"
            ),
        ),
    ]
