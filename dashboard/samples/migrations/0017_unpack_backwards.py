from django.db import migrations

GROUPS_AT_A_TIME = 2_000
UNPACK = """
INSERT INTO samples_completion (group_id, position, text, num_tokens, end_reason,
       reward, advantage, mean_logprob, rule_scores)
SELECT packed.group_id, own.place - 1, own.text, own.num_tokens, own.end_reason,
       own.reward, own.advantage, own.mean_logprob,
       coalesce(packed.rule_scores[
           (own.place - 1) * cardinality(g.rule_names) + 1
           : own.place * cardinality(g.rule_names)], '{}')
  FROM samples_groupcompletions packed
  JOIN samples_group g ON g.id = packed.group_id
 CROSS JOIN LATERAL unnest(
           packed.texts, packed.num_tokens, packed.end_reasons, packed.rewards,
           packed.advantages, packed.mean_logprobs)
       WITH ORDINALITY AS own(text, num_tokens, end_reason, reward, advantage,
                              mean_logprob, place)
 WHERE packed.group_id > %s AND packed.group_id <= %s
 ORDER BY packed.group_id, own.place
    ON CONFLICT (group_id, position) DO NOTHING
"""
NEXT = """
SELECT max(group_id) FROM (
       SELECT group_id FROM samples_groupcompletions
        WHERE group_id > %s ORDER BY group_id LIMIT %s) part
"""
LAST = "SELECT coalesce(max(group_id), 0) FROM samples_completion"


def unpack(apps, schema_editor):
    """Each part commits by itself; broken off, it goes on where it was."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(LAST)
        (done,) = cursor.fetchone()
        while True:
            cursor.execute(NEXT, [done, GROUPS_AT_A_TIME])
            (end,) = cursor.fetchone()
            if end is None:
                break
            cursor.execute(UNPACK, [done, end])
            done = end


class Migration(migrations.Migration):
    """Only on the way back, when the table of the next migration is there again."""

    atomic = False

    dependencies = [
        ("samples", "0016_pack_completions"),
        ("insights", "0002_votes_by_place"),
    ]

    operations = [
        migrations.RunPython(migrations.RunPython.noop, unpack),
    ]
