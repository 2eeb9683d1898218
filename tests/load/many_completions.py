"""A run of many completions, made by SQL: faster than any log could be ingested."""

import random

from django.db import connection

from dashboard.runs.models import Run

NUM_SENTENCES = 50_000
NUM_WORDS = 12_000
COMMON = (
    *("the", "so", "we", "have", "then", "is", "24", "and", "need", "to", "let", "us"),
    *("try", "that", "gives", "which", "not", "equal", "step", "by", "answer", "now"),
    *("check", "first", "multiply", "add", "subtract", "divide", "two", "three"),
)
RARE = "zyzzyvas"  # in one completion of 100,000

SENTENCES = """
CREATE TEMPORARY TABLE sentence (id int PRIMARY KEY, text text)
"""
GROUPS = """
INSERT INTO samples_group (run_id, step, prompt_index, epoch, seq, prompt, answer,
       reward_mean, reward_std, signal, rule_names, is_trained, num_notes)
SELECT %(run)s, step, (step * 131 + slot * 57) %% 7473, 1, step,
       'What is ' || slot || '?', slot::text, 0.6, 0.5, 'mixed',
       '{answer,format}', true, 0
  FROM generate_series(%(first)s, %(last)s) step,
       generate_series(0, %(groups)s - 1) slot
"""
# A tenth of the groups has a completion twice; right ones become likelier.
COMPLETIONS = """
INSERT INTO samples_groupcompletions (group_id, texts, num_bytes, num_tokens,
       end_reasons, rewards, advantages, mean_logprobs, rule_scores)
SELECT group_id, array_agg(text ORDER BY position), sum(octet_length(text)),
       array_agg(num_tokens ORDER BY position),
       array_agg(CASE WHEN num_tokens = 512 THEN 'length' ELSE 'stop' END
                 ORDER BY position),
       array_agg(answer_score + 0.2 * has_format ORDER BY position),
       array_agg(is_right + 0.2 * has_format - 0.6 + 0.001 * (id %% 97)
                 ORDER BY position),
       array_agg(-0.5 - 0.000123 * (id %% 1009) ORDER BY position),
       string_to_array(string_agg(coalesce(answer_score::text, '?') || ' '
                                  || has_format, ' ' ORDER BY position), ' ', '?')
       ::float8[]
  FROM (SELECT drawn.*,
               CASE WHEN drawn.id %% 997 <> 0 THEN is_right END AS answer_score,
               concat_ws(' ', a.text, b.text, c.text, d.text, e.text,
                         'So the answer is ' || drawn.answer || '.',
                         CASE WHEN drawn.id %% 100000 = 7 THEN %(rare)s END) AS text
          FROM (SELECT g.id AS group_id, position,
                       g.id * 8 + position AS id,
                       g.id * 8 + CASE WHEN g.id %% 10 = 0 AND position = 1 THEN 0
                                       ELSE position END AS words,
                       (hashint8(g.id * 8 + position) & 1023)::int AS answer,
                       least(512, 40 + (hashint8(g.id * 77 + position) & 511))::int
                         AS num_tokens,
                       (hashint8(g.id * 3 + position * 5) & 1023 < 300 + g.step * 400
                         / %(steps)s)::int::float8 AS is_right,
                       ((hashint8(g.id * 7 + position * 11) & 3) / 2)::float8 / 2 + 0.5
                         AS has_format
                  FROM samples_group g, generate_series(0, 7) position
                 WHERE g.run_id = %(run)s
                   AND g.step BETWEEN %(first)s AND %(last)s) drawn
          JOIN sentence a ON a.id = abs(hashint8(words * 5) %% %(sentences)s)
          JOIN sentence b ON b.id = abs(hashint8(words * 5 + 1) %% %(sentences)s)
          JOIN sentence c ON c.id = abs(hashint8(words * 5 + 2) %% %(sentences)s)
          JOIN sentence d ON d.id = abs(hashint8(words * 5 + 3) %% %(sentences)s)
          JOIN sentence e ON e.id = abs(hashint8(words * 5 + 4) %% %(sentences)s)
       ) reported
 GROUP BY group_id
"""
# Of steps that are there, as later ones or another run's. What PostgreSQL has
# compressed is stored again as it is.
AGAIN = (
    """
    INSERT INTO samples_group (id, run_id, step, prompt_index, epoch, seq, prompt,
           answer, reward_mean, reward_std, signal, rule_names, is_trained, num_notes)
    SELECT id + %(ids)s, %(to)s, step + %(later)s, prompt_index, epoch,
           seq + %(seqs)s, prompt, answer, reward_mean, reward_std, signal, rule_names,
           is_trained, num_notes
      FROM samples_group WHERE run_id = %(run)s AND step BETWEEN 1 AND %(num)s
    """,
    """
    INSERT INTO samples_groupcompletions (group_id, texts, num_bytes, num_tokens,
           end_reasons, rewards, advantages, mean_logprobs, rule_scores)
    SELECT group_id + %(ids)s, texts, num_bytes, num_tokens, end_reasons, rewards,
           advantages, mean_logprobs, rule_scores
      FROM samples_groupcompletions
      JOIN samples_group g ON g.id = group_id
     WHERE g.run_id = %(run)s AND g.step BETWEEN 1 AND %(num)s ORDER BY group_id
    """,
)
# Eight groups of eight as one of 64.
JOINED = (
    """
    INSERT INTO samples_group (run_id, step, prompt_index, epoch, seq, prompt,
           answer, reward_mean, reward_std, signal, rule_names, is_trained, num_notes)
    SELECT %(to)s, step, min(prompt_index), 1, step, min(prompt), min(answer), 0.6,
           0.5, 'mixed', min(rule_names), true, 0
      FROM (SELECT *, row_number() OVER (PARTITION BY step ORDER BY id) - 1 AS place
              FROM samples_group
             WHERE run_id = %(run)s AND step BETWEEN %(first)s AND %(last)s) part
     GROUP BY step, place / 8 ORDER BY step, place / 8
    """,
    """
    INSERT INTO samples_groupcompletions (group_id, texts, num_bytes, num_tokens,
           end_reasons, rewards, advantages, mean_logprobs, rule_scores)
    SELECT whole.id, array_cat_agg(texts), sum(num_bytes), array_cat_agg(num_tokens),
           array_cat_agg(end_reasons), array_cat_agg(rewards),
           array_cat_agg(advantages), array_cat_agg(mean_logprobs),
           array_cat_agg(rule_scores)
      FROM (SELECT *, row_number() OVER (PARTITION BY step ORDER BY id) - 1 AS place
              FROM samples_group
             WHERE run_id = %(run)s AND step BETWEEN %(first)s AND %(last)s) part
      JOIN samples_groupcompletions packed ON packed.group_id = part.id
      JOIN (SELECT id, step, row_number() OVER (PARTITION BY step ORDER BY id) - 1
                   AS place
              FROM samples_group
             WHERE run_id = %(to)s AND step BETWEEN %(first)s AND %(last)s) whole
        ON whole.step = part.step AND whole.place = part.place / 8
     GROUP BY whole.id
    """,
)
CAT = """
CREATE OR REPLACE AGGREGATE pg_temp.array_cat_agg(anycompatiblearray)
       (SFUNC = array_cat, STYPE = anycompatiblearray)
"""
# As ingest writes them: an event for each group and step.
EVENTS = """
INSERT INTO runs_runevent (run_id, seq, epoch, line, type, step, time, body)
SELECT %(run)s, seq, 1, seq, 'group_scored', seq / %(groups)s + 1,
       '2026-03-01'::timestamptz + seq * interval '50 ms', '{}'
  FROM generate_series(%(first)s, %(last)s) seq
"""


def make_completions(run: Run, *, num_steps: int, num_groups: int) -> None:
    """Eight a group, of about 210 characters; the run's steps are said to be over."""
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute("DROP TABLE IF EXISTS sentence")
        cursor.execute(SENTENCES)
        cursor.executemany(
            "INSERT INTO sentence VALUES (%s, %s)", list(enumerate(sentences()))
        )
        cursor.execute("ANALYZE sentence")
        for first in range(1, num_steps + 1, 500):
            given = {
                "run": run.pk,
                "first": first,
                "last": min(first + 499, num_steps),
                "groups": num_groups,
                "steps": num_steps,
                "sentences": NUM_SENTENCES,
                "rare": RARE,
            }
            cursor.execute(GROUPS, given)
            cursor.execute(COMPLETIONS, given)
        cursor.execute("VACUUM (ANALYZE) samples_group, samples_groupcompletions")
    Run.objects.filter(pk=run.pk).update(last_step=num_steps, num_steps=num_steps)
    run.refresh_from_db()


def sentences() -> list[str]:
    """About 36 characters each; words are as unequally common as in a language."""
    draw = random.Random(7)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    weights = [1 / (place + 1) for place in range(len(letters))]
    words = [
        "".join(draw.choices(letters, weights, k=draw.randint(3, 10)))
        for _ in range(NUM_WORDS)
    ]
    known = [*COMMON, *words]
    shares = [1 / (place + 1) for place in range(len(known))]
    return [
        " ".join(draw.choices(known, shares, k=7)).capitalize() + "."
        for _ in range(NUM_SENTENCES)
    ]


def repeat_completions(run: Run, to: Run, *, num_steps: int, later: int = 0) -> None:
    """The first steps of a run once more, the ids in a row behind all others."""
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute(
            "SELECT min(id), max(id) FROM samples_group"
            " WHERE run_id = %s AND step BETWEEN 1 AND %s",
            [run.pk, num_steps],
        )
        first, last = cursor.fetchone()
        cursor.execute(
            "SELECT setval(seq, nextval(seq) + %s) - %s"
            "  FROM pg_get_serial_sequence('samples_group', 'id') seq",
            [last - first, last - first],
        )
        (begin,) = cursor.fetchone()
        given = {"run": run.pk, "to": to.pk, "num": num_steps, "later": later}
        given |= {"ids": begin - first, "seqs": later}
        for statement in AGAIN:
            cursor.execute(statement, given)


def join_groups(run: Run, to: Run, *, num_steps: int) -> None:
    """The completions of a run's first steps in groups of 64."""
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute(CAT)
        for first in range(1, num_steps + 1, 100):
            given = {"run": run.pk, "to": to.pk}
            given |= {"first": first, "last": min(first + 99, num_steps)}
            for statement in JOINED:
                query = statement.replace("array_cat_agg", "pg_temp.array_cat_agg")
                cursor.execute(query, given)


def make_events(run: Run, *, num_steps: int, num_groups: int) -> None:
    total = num_steps * (num_groups + 1)
    with connection.cursor() as cursor:
        for first in range(0, total, 500_000):
            last = min(first + 500_000, total) - 1
            given = {"run": run.pk, "groups": num_groups + 1}
            cursor.execute(EVENTS, given | {"first": first, "last": last})
