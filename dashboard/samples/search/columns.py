"""The completions of some steps in columns, by step, prompt and position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.db import connection
from numpy.typing import NDArray
from psycopg import Cursor

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


# Groups first, then the completions of each by index: the planner would sooner read the
# whole table, of all runs. `kind` numbers the lists of rules.
READ = """
WITH sampled_group AS MATERIALIZED (
    SELECT id, step, prompt_index, rule_names
      FROM samples_group
     WHERE run_id = %(run)s AND superseded_by IS NULL
       AND step BETWEEN %(first)s AND %(last)s
), sampled AS MATERIALIZED (
    SELECT g.*, packed.*, dense_rank() OVER (ORDER BY g.rule_names) - 1 AS kind
      FROM sampled_group g CROSS JOIN LATERAL (
           SELECT rewards, advantages, num_tokens, end_reasons, rule_scores
             FROM samples_groupcompletions WHERE group_id = g.id OFFSET 0) packed
     ORDER BY g.step, g.prompt_index
)
SELECT *
  FROM (SELECT string_agg(int4send(step), ''::bytea),
               string_agg(int4send(prompt_index), ''::bytea),
               string_agg(int8send(id), ''::bytea),
               string_agg(int4send(cardinality(end_reasons)), ''::bytea),
               string_agg(int4send(kind::int), ''::bytea)
          FROM sampled) of_groups,
       (SELECT string_agg(float8send(coalesce(reward, 'NaN')), ''::bytea),
               string_agg(float8send(coalesce(advantage, 'NaN')), ''::bytea),
               string_agg(int4send(coalesce(length, -1)), ''::bytea),
               string_agg(CASE end_reason WHEN 'length' THEN '\\x01'::bytea
                          WHEN 'stop' THEN '\\x00'::bytea
                          ELSE '\\x02'::bytea END, ''::bytea)
          FROM sampled, unnest(sampled.rewards, sampled.advantages,
                               sampled.num_tokens, sampled.end_reasons)
               AS completion(reward, advantage, length, end_reason)
       ) of_completions,
       (SELECT string_agg(float8send(coalesce(score, 'NaN')), ''::bytea)
          FROM sampled, unnest(sampled.rule_scores) score) of_scores,
       (SELECT json_agg(rule_names ORDER BY kind)
          FROM (SELECT DISTINCT kind, rule_names FROM sampled) known) of_kinds
"""


def read_columns(run_id: int, *, first: int, last: int) -> Columns:
    """Of the current history; one query."""
    # A cursor of psycopg's own gives bytes where Django's gives hexadecimal text.
    connection.ensure_connection()
    with connection.wrap_database_errors, Cursor(connection.connection) as cursor:
        given = {"run": run_id, "first": first, "last": last}
        cursor.execute(READ, given, binary=True)
        row = cursor.fetchone()
    assert row is not None
    *packed, kinds = row
    return _make_columns([each or b"" for each in packed], kinds or [])


def _make_columns(packed: Sequence[bytes], rules: Sequence[list[str]]) -> Columns:
    """`rules` are the lists of names that the groups have, by kind."""
    steps = np.frombuffer(packed[0], ">i4").astype("<u4")
    sizes = np.frombuffer(packed[3], ">i4").astype(np.int64)
    kinds = np.frombuffer(packed[4], ">i4")
    names = list(dict.fromkeys(name for each in sorted(rules) for name in each))
    return Columns(
        steps=_count_steps(steps, sizes),
        prompts=np.frombuffer(packed[1], ">i4").astype(PROMPT),
        group_ids=np.frombuffer(packed[2], ">i8").astype(GROUP_ID),
        group_sizes=sizes,
        rewards=np.frombuffer(packed[5], ">f8").astype(float),
        advantages=np.frombuffer(packed[6], ">f8").astype(float),
        lengths=np.frombuffer(packed[7], ">i4").astype(LENGTH),
        ends=np.frombuffer(packed[8], "u1"),
        rule_names=tuple(names),
        scores=_scores(np.frombuffer(packed[9], ">f8"), sizes, kinds, rules, names),
    )


def _scores(
    flat: Column,
    sizes: Column,
    kinds: Column,
    rules: Sequence[list[str]],
    names: list[str],
) -> Column:
    """[rules, completions] of what is stored completion after completion."""
    found = np.full((len(names), int(sizes.sum())), np.nan)
    widths = np.array([len(each) for each in rules], np.int64)
    kind_of_completion = np.repeat(kinds, sizes)
    kind_of_score = np.repeat(kinds, sizes * widths[kinds])
    for kind, own in enumerate(rules):
        if own:
            rows = np.array([names.index(name) for name in own])
            scores = flat[kind_of_score == kind].reshape(-1, len(own))
            found[np.ix_(rows, np.flatnonzero(kind_of_completion == kind))] = scores.T
    return found


def _count_steps(steps: Column, sizes: Column) -> Column:
    """Of the groups' steps, in order."""
    begins = np.flatnonzero(np.diff(steps.astype(np.int64), prepend=-1))
    counted = np.empty(len(begins), STEP)
    counted["step"] = steps[begins]
    counted["num_completions"] = np.add.reduceat(sizes, begins) if len(begins) else 0
    return counted
