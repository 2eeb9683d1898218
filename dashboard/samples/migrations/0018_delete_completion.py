import importlib

from django.db import migrations

PACK = importlib.import_module(
    "dashboard.samples.migrations.0016_pack_completions"
).PACK
# Of a process that went on ingesting; whoever still does waits here, and then fails.
# Where it holds the table, migrate lets it pass and tries again.
LOCK = "LOCK TABLE samples_completion"
MISSED = """
SELECT min(g.id), max(g.id) FROM samples_group g
 WHERE NOT EXISTS (
       SELECT FROM samples_groupcompletions WHERE group_id = g.id)
   AND EXISTS (SELECT FROM samples_completion WHERE group_id = g.id)
"""


def pack_what_was_missed(apps, schema_editor):
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute(LOCK)
        cursor.execute(MISSED)
        first, last = cursor.fetchone()
        if first is not None:
            cursor.execute(PACK, [first - 1, last])


class Migration(migrations.Migration):
    dependencies = [
        ("samples", "0017_unpack_backwards"),
    ]

    operations = [
        migrations.RunPython(pack_what_was_missed, migrations.RunPython.noop),
        migrations.DeleteModel("Completion"),
    ]
