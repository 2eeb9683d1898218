from django.db import migrations

GROUPS_AT_A_TIME = 2_000
PACK = """
INSERT INTO samples_groupcompletions (group_id, texts, num_bytes, num_tokens,
       end_reasons, rewards, advantages, mean_logprobs, rule_scores)
SELECT g.id, own.texts, own.num_bytes, own.num_tokens, own.end_reasons, own.rewards,
       own.advantages, own.mean_logprobs, scored.rule_scores
  FROM samples_group g
 CROSS JOIN LATERAL (
       SELECT array_agg(text ORDER BY position) AS texts,
              sum(octet_length(text)) AS num_bytes,
              array_agg(num_tokens ORDER BY position) AS num_tokens,
              array_agg(end_reason ORDER BY position) AS end_reasons,
              array_agg(reward ORDER BY position) AS rewards,
              array_agg(advantage ORDER BY position) AS advantages,
              array_agg(mean_logprob ORDER BY position) AS mean_logprobs
         FROM samples_completion WHERE group_id = g.id
       HAVING count(*) > 0) own
 CROSS JOIN LATERAL (
       SELECT coalesce(array_agg(rule_scores[rule] ORDER BY position, rule), '{}')
              AS rule_scores
         FROM samples_completion, generate_series(1, cardinality(g.rule_names)) rule
        WHERE group_id = g.id) scored
 WHERE g.id > %s AND g.id <= %s
    ON CONFLICT (group_id) DO NOTHING
"""
NEXT = """
SELECT max(id) FROM (
       SELECT id FROM samples_group WHERE id > %s ORDER BY id LIMIT %s) part
"""
LAST = "SELECT coalesce(max(group_id), 0) FROM samples_groupcompletions"


def pack(apps, schema_editor):
    """Each part commits by itself; broken off, it goes on where it was."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(LAST)
        (done,) = cursor.fetchone()
        while True:
            cursor.execute(NEXT, [done, GROUPS_AT_A_TIME])
            (end,) = cursor.fetchone()
            if end is None:
                break
            cursor.execute(PACK, [done, end])
            done = end


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("samples", "0015_group_completions"),
    ]

    operations = [
        migrations.RunPython(pack, migrations.RunPython.noop),
    ]
