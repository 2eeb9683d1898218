"""The completions of some steps in columns, by step, prompt and position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard.completions.flags import (
    HIGH_SHORT,
    RIGHT,
    RIGHT_LOW,
    UNSCORED,
)
from dashboard.completions.rewards import all_rules, correctness_by_step
from dashboard.completions.signals.records import fetch_packed
from dashboard.runs.models import Run
from trainer.rewards.scoring import ANSWER_KINDS

Column = NDArray[Any]

STEP = np.dtype([("step", "<u4"), ("num_completions", "<u4")])
PROMPT = np.dtype("<u4")
GROUP_ID = np.dtype("<u8")
GROUP_SIZE = np.dtype("<u2")
# Single precision: values of filters are rounded likewise before they are compared.
NUMBER = np.dtype("<f4")  # NaN: no score
LENGTH = np.dtype("<u4")
UNKNOWN_LENGTH = 2**32 - 1  # of imported runs
KIND = np.dtype("u1")
# The turns of the policy, up to MANY_TURNS, above them TOOL_FAILED; 0: no episode.
TURNS = np.dtype("u1")
MANY_TURNS, TOOL_FAILED = 127, 128
EPISODE = np.dtype([("turns", ">i4"), ("waited", ">f4")])
TALLY = np.dtype("<u4")
MOST_TALLIED = 8  # rules whose full and missing scores are bits of a byte
TENTH = 0.1
FLAGS = ("kinds", "full_scores", "no_scores")


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    steps: Column  # STEP, one a step
    prompts: Column  # one a group
    group_ids: Column
    group_sizes: Column
    rewards: Column  # float64, one a completion; so are those below
    advantages: Column
    lengths: Column
    ends: Column  # flags of flags.ENDS
    turns: Column  # TURNS; empty, as the next one is, where there are no episodes
    waits: Column  # NUMBER: seconds that the environment took
    rule_names: tuple[str, ...]
    scores: Column  # [rules, completions]

    @property
    def num_completions(self) -> int:
        return len(self.rewards)


# Groups first, then the completions of each by index: the planner would sooner read the
# whole table, of all runs. `kind` numbers the lists of rules. Seconds may be stored
# that single precision does not hold.
READ = """
WITH sampled_group AS MATERIALIZED (
    SELECT id, step, prompt_index, rule_names
      FROM samples_group
     WHERE run_id = %(run)s AND superseded_by IS NULL
       AND step BETWEEN %(first)s AND %(last)s
), sampled AS MATERIALIZED (
    SELECT g.*, packed.*, dense_rank() OVER (ORDER BY g.rule_names) - 1 AS kind
      FROM sampled_group g CROSS JOIN LATERAL (
           SELECT rewards, advantages, num_tokens, end_reasons, rule_scores, turns
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
                          WHEN 'turns' THEN '\\x81'::bytea
                          WHEN 'done' THEN '\\x80'::bytea
                          WHEN 'failed' THEN '\\xc0'::bytea
                          WHEN 'timeout' THEN '\\xc1'::bytea
                          ELSE '\\x40'::bytea END, ''::bytea)
          FROM sampled, unnest(sampled.rewards, sampled.advantages,
                               sampled.num_tokens, sampled.end_reasons)
               AS completion(reward, advantage, length, end_reason)
       ) of_completions,
       (SELECT string_agg(float8send(coalesce(score, 'NaN')), ''::bytea)
          FROM sampled, unnest(sampled.rule_scores) score) of_scores,
       (SELECT string_agg(coalesce(episode, '\\x0000000000000000'), ''::bytea)
          FROM sampled, generate_subscripts(end_reasons, 1) place, LATERAL (
               SELECT int4send(least(count(*) FILTER (WHERE t ->> 'author' = 'policy'),
                                     127)::int
                               + 128 * bool_or(t @? '$.calls[*].error')::int)
                      || float4send(least(greatest(round(
                             sum((t ->> 'seconds')::numeric), 6), 0), 1e9)::float4)
                      AS episode
                 FROM jsonb_array_elements(sampled.turns -> (place - 1)) t
               ) of_episode
         WHERE EXISTS (SELECT FROM sampled WHERE turns IS NOT NULL)) of_episodes,
       (SELECT json_agg(rule_names ORDER BY kind)
          FROM (SELECT DISTINCT kind, rule_names FROM sampled) known) of_kinds
"""


def read_columns(run_id: int, *, first: int, last: int) -> Columns:
    """Read completions of the current history; one query."""
    ((*packed, kinds),) = fetch_packed(
        READ, {"run": run_id, "first": first, "last": last}
    )
    return _make_columns([column or b"" for column in packed], kinds or [])


def _make_columns(packed: Sequence[bytes], rules: Sequence[list[str]]) -> Columns:
    """`rules` are the lists of names that the groups have, by kind."""
    steps = np.frombuffer(packed[0], ">i4").astype("<u4")
    sizes = np.frombuffer(packed[3], ">i4").astype(np.int64)
    kinds = np.frombuffer(packed[4], ">i4")
    names = list(
        dict.fromkeys(name for rule_names in sorted(rules) for name in rule_names)
    )
    # Of the groups' steps, in order.
    begins = np.flatnonzero(np.diff(steps.astype(np.int64), prepend=-1))
    counted = np.empty(len(begins), STEP)
    counted["step"] = steps[begins]
    counted["num_completions"] = np.add.reduceat(sizes, begins) if len(begins) else 0
    # [rules, completions] of what is stored completion after completion.
    flat = np.frombuffer(packed[9], ">f8")
    episodes = np.frombuffer(packed[10], EPISODE)
    scores_by_rule = np.full((len(names), int(sizes.sum())), np.nan)
    widths = np.array([len(rule_names) for rule_names in rules], np.int64)
    kind_of_completion = np.repeat(kinds, sizes)
    kind_of_score = np.repeat(kinds, sizes * widths[kinds])
    for kind, own in enumerate(rules):
        if own:
            rows = np.array([names.index(name) for name in own])
            scores = flat[kind_of_score == kind].reshape(-1, len(own))
            scores_by_rule[np.ix_(rows, np.flatnonzero(kind_of_completion == kind))] = (
                scores.T
            )
    return Columns(
        steps=counted,
        prompts=np.frombuffer(packed[1], ">i4").astype(PROMPT),
        group_ids=np.frombuffer(packed[2], ">i8").astype(GROUP_ID),
        group_sizes=sizes,
        rewards=np.frombuffer(packed[5], ">f8").astype(float),
        advantages=np.frombuffer(packed[6], ">f8").astype(float),
        lengths=np.frombuffer(packed[7], ">i4").astype(LENGTH),
        ends=np.frombuffer(packed[8], "u1"),
        turns=episodes["turns"].astype(TURNS),
        waits=episodes["waited"].astype(NUMBER),
        rule_names=tuple(names),
        scores=scores_by_rule,
    )


def pack_columns(run: Run, columns: Columns) -> dict[str, Column]:
    """Convert to the form stored in a block; `kinds` without NEAR, which needs the
    texts.
    """
    # Numbers beyond single precision become infinite.
    with np.errstate(over="ignore"):
        # Of the first rules, to the precision of filters.
        scores = columns.scores[:MOST_TALLIED].astype(NUMBER)
        return {
            "prompts": columns.prompts,
            "group_ids": columns.group_ids,
            "group_sizes": columns.group_sizes.astype(GROUP_SIZE),
            "rewards": columns.rewards.astype(NUMBER),
            "advantages": columns.advantages.astype(NUMBER),
            "lengths": columns.lengths,
            "kinds": compute_kinds(run, columns),
            "full_scores": _as_bits(scores >= 1, columns.num_completions),
            "no_scores": _as_bits(scores <= 0, columns.num_completions),
            "turns": columns.turns,
            "waits": columns.waits,
            "scores": columns.scores.astype(NUMBER),
        }


def tally_flags(packed: Mapping[str, Column]) -> bytes:
    """Count by value of kinds, full_scores and no_scores, [3, 256]."""
    return (
        np.concatenate([np.bincount(packed[name], minlength=256) for name in FLAGS])
        .astype(TALLY)
        .tobytes()
    )


def compares_answers(run: Run) -> bool:
    """Tell whether a rule of any phase compares with the answer."""
    return any(rule.get("kind") in ANSWER_KINDS for rule in all_rules(run))


def compute_kinds(run: Run, columns: Columns) -> Column:
    """Compute all flags except NEAR, which needs the texts."""
    kinds = columns.ends.astype(KIND)
    if not len(kinds):
        return kinds
    counts = columns.steps["num_completions"]
    kinds[np.isnan(columns.rewards)] |= UNSCORED
    is_right, is_by_answer = _find_right(run, columns)
    kinds[is_right] |= RIGHT
    # Of each completion's group; equal rewards are not below their mean.
    sizes = columns.group_sizes
    starts = np.cumsum(sizes) - sizes
    is_scored = ~np.isnan(columns.rewards)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.reduceat(np.where(is_scored, columns.rewards, 0.0), starts)
        means = sums / np.maximum(np.add.reduceat(is_scored.astype(int), starts), 1)
        means -= 1e-9 * np.maximum(1.0, np.abs(means))
    is_low = columns.rewards < np.repeat(means, sizes)
    kinds[is_right & is_by_answer & is_low] |= RIGHT_LOW
    ends = np.cumsum(counts)
    for start, end in zip(ends - counts, ends, strict=True):
        is_odd = _is_high_and_short(
            columns.rewards[start:end], columns.lengths[start:end]
        )
        kinds[start:end][is_odd] |= HIGH_SHORT
    return kinds


def _find_right(run: Run, columns: Columns) -> tuple[Column, Column]:
    """Find which completions are correct (`Correctness.holds`), and which by the
    answer.
    """
    steps = columns.steps["step"].tolist()
    by_step = correctness_by_step(run, steps)
    row_of = {name: row for row, name in enumerate(columns.rule_names)}
    right, by_answer = np.zeros((2, columns.num_completions), bool)
    end = 0
    for step, count in zip(steps, columns.steps["num_completions"], strict=True):
        start, end = end, end + int(count)
        correctness, rewards = by_step[step], columns.rewards[start:end]
        names = [name for name in correctness.full_scores if name in row_of]
        scores = columns.scores[[row_of[name] for name in names], start:end]
        full = np.array([[correctness.full_scores[name]] for name in names])
        if names:
            is_missing = np.isnan(scores)
            is_full = (scores >= full) | is_missing
            right[start:end] = is_full.all(axis=0) & ~is_missing.all(axis=0)
            right[start:end] &= ~np.isnan(rewards)
            by_answer[start:end] = True
        elif correctness.least_reward is not None:
            right[start:end] = rewards >= correctness.least_reward
    return right, by_answer


def _is_high_and_short(rewards: Column, lengths: Column) -> Column:
    """Compare completions of one step."""
    scored = np.sort(rewards[~np.isnan(rewards)])
    if not len(scored):
        return np.zeros(len(rewards), bool)
    shortest = np.sort(lengths)
    is_high = (rewards >= _at(scored, 1 - TENTH)) & (rewards > _at(scored, 0.5))
    is_short = (lengths <= _at(shortest, TENTH)) & (lengths < _at(shortest, 0.5))
    is_odd: Column = is_high & is_short
    return is_odd


def _at(ordered: Column, share: float) -> float:
    return float(ordered[round(share * (len(ordered) - 1))])


def _as_bits(is_so: Column, num: int) -> Column:
    bits = np.zeros(num, KIND)
    for row, is_set in enumerate(is_so):
        bits |= is_set.astype(KIND) << row
    return bits
