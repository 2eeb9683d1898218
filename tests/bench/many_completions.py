"""A run of many completions, made by SQL: faster than any log could be ingested."""

from __future__ import annotations

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
INSERT INTO samples_completion (group_id, position, text, num_tokens, end_reason,
       reward, rule_scores, advantage, mean_logprob)
SELECT drawn.group_id, drawn.position,
       concat_ws(' ', a.text, b.text, c.text, d.text, e.text,
                 'So the answer is ' || drawn.answer || '.',
                 CASE WHEN drawn.id %% 100000 = 7 THEN %(rare)s END),
       drawn.num_tokens,
       CASE WHEN drawn.num_tokens = 512 THEN 'length' ELSE 'stop' END,
       CASE WHEN drawn.id %% 997 <> 0 THEN drawn.is_right + 0.2 * drawn.has_format END,
       ARRAY[CASE WHEN drawn.id %% 997 <> 0 THEN drawn.is_right END, drawn.has_format],
       drawn.is_right + 0.2 * drawn.has_format - 0.6 + 0.001 * (drawn.id %% 97),
       -0.5
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
         WHERE g.run_id = %(run)s AND g.step BETWEEN %(first)s AND %(last)s) drawn
  JOIN sentence a ON a.id = abs(hashint8(words * 5) %% %(sentences)s)
  JOIN sentence b ON b.id = abs(hashint8(words * 5 + 1) %% %(sentences)s)
  JOIN sentence c ON c.id = abs(hashint8(words * 5 + 2) %% %(sentences)s)
  JOIN sentence d ON d.id = abs(hashint8(words * 5 + 3) %% %(sentences)s)
  JOIN sentence e ON e.id = abs(hashint8(words * 5 + 4) %% %(sentences)s)
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
        cursor.execute("VACUUM (ANALYZE) samples_group, samples_completion")
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
