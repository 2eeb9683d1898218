"""A run's completions as blocks: stored ones, and one of the newest steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from psycopg import sql

from dashboard.completions.models import Group
from dashboard.completions.search.columns import (
    GROUP_ID,
    GROUP_SIZE,
    KIND,
    LENGTH,
    NUMBER,
    PROMPT,
    STEP,
    TALLY,
    TURNS,
    Column,
    pack_columns,
    read_columns,
    tally_flags,
)
from dashboard.completions.signals.records import fetch_packed
from dashboard.project.cache import ByteCache
from dashboard.project.database import fetch_all
from dashboard.runs.models import Run

MAX_BYTES = 256 * 2**20
GROUP_OF_AN_IMPORT = 64
MOST_FRESH = 16_384  # completions without a block that a search reads
DTYPES: dict[str, np.dtype[Any]] = {
    "prompts": PROMPT,
    "group_ids": GROUP_ID,
    "group_sizes": GROUP_SIZE,
    "rewards": NUMBER,
    "advantages": NUMBER,
    "lengths": LENGTH,
    "kinds": KIND,
    "full_scores": KIND,
    "no_scores": KIND,
    "turns": TURNS,
    "waits": NUMBER,
    "scores": NUMBER,
}

HEADS = """
SELECT id, made_at, last_step, num_completions, num_bits, rule_names, steps, tallies
  FROM samples_completionblock WHERE run_id = %s ORDER BY first_step
"""
MADE = "SELECT id, made_at FROM samples_completionblock WHERE run_id = %s ORDER BY id"
PART = sql.SQL(
    """
    SELECT part.number, substring({column} FROM part.first + 1 FOR part.size)
      FROM unnest(%s::bigint[], %s::int[], %s::int[])
           WITH ORDINALITY AS part(id, first, size, number)
      JOIN samples_completionblock block ON block.id = part.id
    """
)


# Blocks never change, so no column becomes stale.
column_cache: ByteCache[Column] = ByteCache(MAX_BYTES, size=attrgetter("nbytes"))


class BlocksChanged(Exception):
    """A worker replaced the blocks during a read. Read them again."""


@dataclass(frozen=True, kw_only=True)
class Block:
    key: tuple[int, datetime] | None  # None: not stored, without bits of texts
    pk: int
    num_completions: int
    num_bits: int
    rule_names: tuple[str, ...]
    steps: Column
    own: Mapping[str, Column] = field(default_factory=dict)
    _tallies: bytes = b""

    @cached_property
    def step_ends(self) -> Column:
        """Index after each step's last completion."""
        return np.cumsum(self.steps["num_completions"], dtype=np.int64)

    @cached_property
    def tallies(self) -> Column:
        """The counts by value of kinds, full_scores and no_scores, [3, 256]."""
        return np.frombuffer(self._tallies, TALLY).reshape(3, 256)

    def steps_of(self, indices: Column) -> Column:
        steps: Column = self.steps["step"][
            np.searchsorted(self.step_ends, indices, side="right")
        ]
        return steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """By step; `left_out` are steps without a block."""

    blocks: list[Block]
    fresh_from: int | None = None  # first step without near-duplicates
    left_out: tuple[int, int] | None = None

    @property
    def num_completions(self) -> int:
        return sum(block.num_completions for block in self.blocks)


def read_blocks(run: Run) -> Blocks:
    """Stored blocks and the newest steps; up to five queries."""
    rows = fetch_packed(HEADS, [run.pk])
    blocks = [
        Block(
            key=(pk, made_at),
            pk=pk,
            num_completions=num,
            num_bits=num_bits,
            rule_names=tuple(names),
            steps=np.frombuffer(steps, STEP),
            _tallies=tallies,
        )
        for pk, made_at, _, num, num_bits, names, steps, tallies in rows
    ]
    after = rows[-1][2] if rows else -1
    fresh = _fresh_steps(run, after)
    if fresh is None:
        return Blocks(blocks=blocks)
    first, oldest, last = fresh
    columns = read_columns(run.pk, first=first, last=last)
    own = pack_columns(run, columns)
    return Blocks(
        blocks=[
            *blocks,
            Block(
                key=None,
                pk=0,
                num_completions=columns.num_completions,
                num_bits=0,
                rule_names=columns.rule_names,
                steps=columns.steps,
                own=own,
                _tallies=tally_flags(own),
            ),
        ],
        fresh_from=first,
        left_out=(oldest, first - 1) if oldest < first else None,
    )


def made_blocks(run: Run) -> list[Any]:
    """Name the stored blocks; one query."""
    return fetch_all(MADE, [run.pk], is_prepared=True)


def _fresh_steps(run: Run, after: int) -> tuple[int, int, int] | None:
    """First step to read without a block, oldest step without one, and last step.

    None if all have blocks. A run older than blocks may have a million without one. Up
    to two queries.
    """
    # Imports have no group size.
    group_size = run.config.get("rollout", {}).get("group_size", GROUP_OF_AN_IMPORT)
    most_groups = max(1, MOST_FRESH // group_size)
    groups = Group.objects.current().filter(run=run, step__gt=after)
    steps = list(
        groups.order_by("-step").values_list("step", flat=True)[: most_groups + 1]
    )
    if not steps:
        return None
    oldest = first = steps[-1]
    if len(steps) > most_groups:
        # The oldest step may be incomplete.
        first = min((step for step in steps if step > oldest), default=oldest)
        oldest = groups.order_by("step").values_list("step", flat=True)[0]
    return first, oldest, steps[0]


def read_parts(column: str, parts: Sequence[tuple[int, int, int]]) -> dict[int, bytes]:
    """Bytes of blocks, each (block, first byte, size), by index of the part."""
    query = PART.format(column=sql.Identifier(column))
    return {
        number - 1: part
        for number, part in fetch_packed(
            query, [list(part) for part in zip(*parts, strict=True)]
        )
    }


class ColumnKey(NamedTuple):
    block: tuple[int, datetime]
    name: str
    rule: str


def read_column(blocks: Sequence[Block], name: str, rule: str = "") -> list[Column]:
    """Read a column of each block; of `scores`, the rule's. One query unless all are
    cached.
    """
    made = {ColumnKey(block.key, name, rule): block for block in blocks if block.key}

    def read(missing: list[ColumnKey]) -> dict[ColumnKey, Column]:
        columns = read_parts(name, [_part(made[key], name, rule) for key in missing])
        # Replaced blocks are missing.
        return {
            key: np.frombuffer(columns[i], DTYPES[name])
            for i, key in enumerate(missing)
            if i in columns
        }

    column = column_cache.get(made, read)
    if len(column) < len(made):
        raise BlocksChanged
    columns = [
        column[ColumnKey(block.key, name, rule)]
        if block.key
        else _own(block, name, rule)
        for block in blocks
    ]
    # Zeros if a block has none of what the column counts.
    return [
        own if len(own) else np.zeros(block.num_completions, own.dtype)
        for own, block in zip(columns, blocks, strict=True)
    ]


def _own(block: Block, name: str, rule: str) -> Column:
    if name == "scores":
        scores: Column = block.own[name][block.rule_names.index(rule)]
        return scores
    return block.own[name]


def _part(block: Block, name: str, rule: str) -> tuple[int, int, int]:
    if name != "scores":
        return block.pk, 0, 2**31 - 2
    size = block.num_completions * NUMBER.itemsize
    return block.pk, block.rule_names.index(rule) * size, size
