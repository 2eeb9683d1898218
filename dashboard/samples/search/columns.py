"""The completions of some steps in columns, by step, prompt and position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.db import connection
from numpy.typing import NDArray
from psycopg import Cursor, sql

Column = NDArray[Any]

STEP = np.dtype([("step", "<u4"), ("num_completions", "<u4")])
PROMPT = np.dtype("<u4")
GROUP_ID = np.dtype("<u8")
GROUP_SIZE = np.dtype("<u2")
# Single precision: what is asked for is rounded as they are before it is compared.
NUMBER = np.dtype("<f4")  # NaN: no score
LENGTH = np.dtype("<u4")
UNKNOWN_LENGTH = 2**32 - 1  # an imported run may not tell
KIND = np.dtype("u1")
CUT_END, UNKNOWN_END = 1, 2
TALLY = np.dtype("<u4")
MOST_TALLIED = 8  # rules whose full and missing scores are bits of a byte


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    steps: Column  # STEP, one a step
    prompts: Column  # one a group
    group_ids: Column
    group_sizes: Column
    rewards: Column  # float64, one a completion; so are those below
    advantages: Column
    lengths: Column
    ends: Column  # CUT_END, UNKNOWN_END, or it ended by itself
    rule_names: tuple[str, ...]
    scores: Column  # [rules, completions]

    @property
    def num_completions(self) -> int:
        return len(self.rewards)


# Groups first, then the completions of each by index: the planner takes a group to have
# a hundred, and would sooner read the whole table, with the texts of all runs.
READ = sql.SQL(
    """
    WITH sampled_group AS MATERIALIZED (
        SELECT id, step, prompt_index, rule_names
          FROM samples_group
         WHERE run_id = %(run)s AND superseded_by IS NULL
           AND step BETWEEN %(first)s AND %(last)s
    )
    SELECT string_agg(int4send(step), ''::bytea),
           string_agg(int4send(prompt_index), ''::bytea),
           string_agg(int8send(group_id), ''::bytea),
           string_agg(float8send(coalesce(reward, 'NaN')), ''::bytea),
           string_agg(float8send(coalesce(advantage, 'NaN')), ''::bytea),
           string_agg(int4send(coalesce(num_tokens, -1)), ''::bytea),
           string_agg(CASE end_reason WHEN 'length' THEN '\\x01'::bytea
                      WHEN 'stop' THEN '\\x00'::bytea
                      ELSE '\\x02'::bytea END, ''::bytea){scores}
      FROM (SELECT g.step, g.prompt_index, g.rule_names, c.group_id, c.reward,
                   c.advantage, c.num_tokens, c.end_reason, c.rule_scores
              FROM sampled_group g
             CROSS JOIN LATERAL (
                   SELECT * FROM samples_completion
                    WHERE group_id = g.id OFFSET 0) c
             ORDER BY g.step, g.prompt_index, c.position) sampled
    """
)
SCORE = sql.SQL(
    ", string_agg(float8send(coalesce("
    "rule_scores[array_position(rule_names, {name})], 'NaN')), ''::bytea)"
)


def read_columns(
    run_id: int, *, first: int, last: int, rule_names: Sequence[str] | None = None
) -> Columns:
    """Of the current history; two queries, one where the rules are known."""
    names = _rule_names(run_id, first, last) if rule_names is None else rule_names
    scores = [SCORE.format(name=sql.Literal(name)) for name in names]
    given = {"run": run_id, "first": first, "last": last}
    # A cursor of psycopg's own gives bytes where Django's gives hexadecimal text.
    connection.ensure_connection()
    with connection.wrap_database_errors, Cursor(connection.connection) as cursor:
        cursor.execute(READ.format(scores=sql.Composed(scores)), given, binary=True)
        row = cursor.fetchone()
    assert row is not None
    return _make_columns([packed or b"" for packed in row], tuple(names))


def _rule_names(run_id: int, first: int, last: int) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT rule_names FROM samples_group WHERE run_id = %s"
            " AND superseded_by IS NULL AND step BETWEEN %s AND %s",
            [run_id, first, last],
        )
        known = sorted(names for (names,) in cursor)
    return list(dict.fromkeys(name for names in known for name in names))


def _make_columns(packed: Sequence[bytes], rule_names: tuple[str, ...]) -> Columns:
    steps = np.frombuffer(packed[0], ">i4").astype("<u4")
    group_ids = np.frombuffer(packed[2], ">i8").astype(GROUP_ID)
    begins = _begins(group_ids)
    scores = [np.frombuffer(each, ">f8").astype(float) for each in packed[7:]]
    return Columns(
        steps=_count_steps(steps),
        prompts=np.frombuffer(packed[1], ">i4").astype(PROMPT)[begins],
        group_ids=group_ids[begins],
        group_sizes=np.diff(np.append(begins, len(group_ids))),
        rewards=np.frombuffer(packed[3], ">f8").astype(float),
        advantages=np.frombuffer(packed[4], ">f8").astype(float),
        lengths=np.frombuffer(packed[5], ">i4").astype(LENGTH),
        ends=np.frombuffer(packed[6], "u1"),
        rule_names=rule_names,
        scores=np.array(scores).reshape(len(rule_names), len(steps)),
    )


def _begins(keys: Column) -> Column:
    """Where each stretch of equals begins."""
    if not len(keys):
        return np.empty(0, np.int64)
    return np.append(0, np.flatnonzero(np.diff(keys)) + 1)


def _count_steps(steps: Column) -> Column:
    begins = _begins(steps)
    counted = np.empty(len(begins), STEP)
    counted["step"] = steps[begins]
    counted["num_completions"] = np.diff(np.append(begins, len(steps)))
    return counted
