from django.db import migrations

NOTES = """
INSERT INTO samples_rulenote (run_id, group_id, step, position, rule, is_error, text)
SELECT g.run_id, g.id, g.step, c.position, left(log.key, 40), false, log.value
FROM samples_completion c
JOIN samples_group g ON g.id = c.group_id
CROSS JOIN LATERAL jsonb_each_text(c.logs) log
WHERE c.logs <> '{}'
ORDER BY g.id, c.position
"""
COUNTS = """
UPDATE samples_group g SET num_notes = n.num
FROM (SELECT group_id, count(*) AS num FROM samples_rulenote GROUP BY group_id) n
WHERE n.group_id = g.id
"""
LOGS = """
UPDATE samples_completion c SET logs = n.logs
FROM (
    SELECT group_id, position, jsonb_object_agg(rule, text) AS logs
    FROM samples_rulenote WHERE NOT is_error GROUP BY group_id, position
) n
WHERE n.group_id = c.group_id AND n.position = c.position
"""


class Migration(migrations.Migration):
    dependencies = [("samples", "0004_rule_note")]

    operations = [
        migrations.RunSQL(NOTES, reverse_sql=LOGS),
        migrations.RunSQL(COUNTS, reverse_sql=migrations.RunSQL.noop),
    ]
