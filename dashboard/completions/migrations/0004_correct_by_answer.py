"""Marks what was counted by the highest reward, where the answer decides now.

Such rollups count as older ones: pages count their groups at each request until
`manage.py fill_rollups`. A worker makes the deleted blocks again. Runs whose completions
were deleted keep their counts, and their summary says so. One rule alone gives its full
score exactly where the reward is highest, so runs of one rule stay as they are.
"""

from typing import Any, ClassVar

from django.db import migrations

AFFECTED = """
SELECT id, completions_deleted_at IS NULL FROM runs_run
 WHERE jsonb_path_exists(config, '$.**.kind ? (@ like_regex "KINDS")')
   AND (jsonb_path_exists(config, '$.**.rules[1]')
        OR jsonb_path_exists(config, '$.**.overlong_buffer_tokens ? (@ > 0)'))
"""
KINDS = (
    "^(exact_answer|numeric_answer|math_verify|marker_answer|multiple_choice|code_tests"
    "|countdown|reasoning_answer|reasoning_gym)$"
)
KEEP = (
    """UPDATE runs_run SET summary = summary || '{"correct": "highest"}' """
    "WHERE id = %s"
)
MARK = (
    "UPDATE samples_steprollup SET passes = '', majorities = '' WHERE run_id = %s",
    "DELETE FROM samples_completionblock WHERE run_id = %s",
)


def mark_counts(apps: Any, schema_editor: Any) -> None:
    """Run by run, so that no row is locked for long; it may be repeated."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(AFFECTED.replace("KINDS", KINDS))
        for run_id, has_completions in cursor.fetchall():
            for statement in MARK if has_completions else (KEEP,):
                cursor.execute(statement, [run_id])


class Migration(migrations.Migration):
    atomic = False
    dependencies: ClassVar = [
        ("runs", "0005_pinned_metrics"),
        ("samples", "0003_several_answers"),
    ]
    operations: ClassVar = [
        migrations.RunPython(mark_counts, migrations.RunPython.noop, elidable=True),
    ]
