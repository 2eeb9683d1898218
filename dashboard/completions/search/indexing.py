"""Creates blocks of a run's finished steps in the background, and deletes them."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from celery import shared_task
from django.db import connection, transaction
from django.db.models import Count, F, Max, QuerySet, Sum
from django.db.models.functions import Coalesce

from dashboard.completions.flags import NEAR, find_near_duplicates
from dashboard.completions.models import (
    NUM_COMPLETIONS,
    CompletionBlock,
    Group,
    GroupCompletions,
    policy_texts,
)
from dashboard.completions.search.columns import (
    STEP,
    Columns,
    pack_columns,
    read_columns,
    tally_flags,
)
from dashboard.completions.search.text import choose_num_bits, sign
from dashboard.jobs import shutdown
from dashboard.project.database import fetch_all, session_lock
from dashboard.runs.models import Run, RunState

FEWEST = 4_096  # completions of a block, during the run
MOST = 65_536
MOST_CHARS = 24_000_000  # of texts in memory
MOST_JOINED = 32
MOST_GROUPS = 16_384  # read to find the end of a block

ADVISORY_LOCK = 0x436F6C73  # an arbitrary ID, the same in all processes
SECONDS = 8.0  # of the ten between two messages
GROUPS_AT_A_TIME = 2_000

RESTING = (RunState.PAUSED, RunState.FINISHED, RunState.STOPPED, RunState.FAILED)
# As in columns.py: groups first, then the completions of each by index.
SIZES = """
WITH g AS MATERIALIZED (
    SELECT id, step FROM samples_group
     WHERE run_id = %s AND superseded_by IS NULL AND step BETWEEN %s AND %s
)
SELECT g.step, sum(c.num), sum(c.size)
  FROM g CROSS JOIN LATERAL (
       SELECT cardinality(end_reasons) AS num, num_bytes AS size
         FROM samples_groupcompletions WHERE group_id = g.id OFFSET 0) c
 GROUP BY g.step ORDER BY g.step
"""
TEXTS = """
WITH g AS MATERIALIZED (
    SELECT id, step, prompt_index FROM samples_group
     WHERE run_id = %s AND superseded_by IS NULL AND step BETWEEN %s AND %s
)
SELECT c.texts, c.turns
  FROM g CROSS JOIN LATERAL (
       SELECT texts, turns
         FROM samples_groupcompletions WHERE group_id = g.id OFFSET 0) c
 ORDER BY g.step, g.prompt_index
"""


# Raw SQL, as there may be millions without further dependents.
OF_GROUPS = (
    "DELETE FROM samples_grouptokens WHERE group_id = ANY(%s)",
    "DELETE FROM samples_rulenote WHERE group_id = ANY(%s)",
)
COMPLETIONS = """
WITH deleted AS (
    DELETE FROM samples_groupcompletions WHERE group_id = ANY(%s)
    RETURNING cardinality(end_reasons) AS num
)
SELECT coalesce(sum(num), 0) FROM deleted
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Steps of one new block."""

    first: int
    last: int
    num_chars: int
    replaced: tuple[int, ...]  # IDs of the blocks that it replaces


@shared_task(name="samples.index", ignore_result=True)
def index() -> None:
    """Create missing blocks, for SECONDS."""
    until = time.monotonic() + SECONDS
    # One process creates blocks.
    with session_lock(ADVISORY_LOCK) as is_mine:
        if not is_mine:
            return
        for run in runs_to_index():
            if shutdown.is_announced() or time.monotonic() >= until:
                return
            index_run(run, until=until)


def runs_to_index() -> QuerySet[Run]:
    """List runs with finished steps behind their last block, the newest first."""
    runs: QuerySet[Run] = Run.objects.annotate(
        indexed=Coalesce(Max("completion_blocks__last_step"), -1)
    )
    return (
        runs.filter(last_step__gt=F("indexed")).filter(last_step__gt=0).order_by("-pk")
    )


def index_run(run: Run, *, until: float) -> int:
    """Blocks of what has none, until `time.monotonic()` is `until`; how many."""
    num_made = 0
    while time.monotonic() < until and (stretch := next_stretch(run)):
        if not _make(run, stretch):
            break  # the history has changed: the next call reads it again
        num_made += 1
    return num_made


def count_completions(run: Run, *, first: int, last: int) -> int:
    """Reads blocks instead of rows where it can: there may be ten million."""
    num, after = 0, -1
    for block_end, packed in run.completion_blocks.order_by("first_step").values_list(
        "last_step", "steps"
    ):
        steps = np.frombuffer(packed, STEP)
        within = (steps["step"] >= first) & (steps["step"] <= last)
        num += int(steps["num_completions"][within].sum(dtype=np.int64))
        after = block_end
    stored = GroupCompletions.objects.filter(
        group__in=Group.objects.current().filter(
            run=run, step__gt=max(after, first - 1), step__lte=last
        )
    )
    return num + (stored.aggregate(num=Sum(NUM_COMPLETIONS))["num"] or 0)


def delete_completions_of(run: Run, *, keep: Collection[int]) -> int:
    """Delete completions of all groups except `keep`; returns their number.

    Also deletes their tokens, rule output and blocks; a worker rebuilds the blocks of
    the rest. Requires a transaction.
    """
    going = sorted(
        set(Group.objects.filter(run=run).order_by("pk").values_list("pk", flat=True))
        - set(keep)
    )
    CompletionBlock.objects.filter(run=run).delete()
    with connection.cursor() as cursor:
        num_deleted = 0
        for first in range(0, len(going), GROUPS_AT_A_TIME):
            part = going[first : first + GROUPS_AT_A_TIME]
            for statement in OF_GROUPS:
                cursor.execute(statement, [part])
            cursor.execute(COMPLETIONS, [part])
            num_deleted += int(cursor.fetchone()[0])
    return num_deleted


def next_stretch(run: Run) -> Stretch | None:
    """Choose the oldest steps without a block, and the small blocks before them.

    Blocks join those that are no larger, so that each text is read a few times at most.
    """
    sizes = ("first_step", "last_step", "num_completions", "num_chars")
    blocks = list(
        CompletionBlock.objects.filter(run=run)
        .order_by("-first_step")
        .only(*sizes)[:MOST_JOINED]
    )
    last = Run.objects.values_list("last_step", flat=True).get(pk=run.pk)
    after = blocks[0].last_step if blocks else -1
    # The last step to read: there may be a million groups without a block.
    beyond: int | None = (
        Group.objects.current()
        .filter(run=run, step__gt=after, step__lte=last)
        .order_by("step")
        .values_list("step", flat=True)[MOST_GROUPS : MOST_GROUPS + 1]
        .first()
    )
    bound = last if beyond is None else beyond
    is_all = bound == last
    steps = _read_sizes(run, after, bound)
    num_new = sum(num for _, num, _ in steps)
    if last <= after or (is_all and num_new < FEWEST and run.state not in RESTING):
        return None
    num_chars = sum(chars for _, _, chars in steps)
    first, replaced = (steps[0][0] if steps else after + 1), []
    for block in blocks:
        num_new += block.num_completions
        num_chars += block.num_chars
        is_small = block.num_completions <= num_new - block.num_completions
        if not is_small or num_new > MOST or num_chars > MOST_CHARS:
            num_chars -= block.num_chars
            break
        first = block.first_step
        replaced.append(block.pk)
    return Stretch(
        first=first,
        last=steps[-1][0] if steps else last,
        num_chars=num_chars,
        replaced=tuple(replaced),
    )


def _read_sizes(run: Run, after: int, bound: int) -> list[tuple[int, int, int]]:
    """Read step, completions and bytes of their texts of the steps of a block.

    As many steps as fit, at least one.
    """
    steps: list[tuple[int, int, int]] = []
    num = chars = 0
    for step, num_of_step, chars_of_step in fetch_all(
        SIZES, [run.pk, after + 1, bound]
    ):
        num, chars = num + int(num_of_step), chars + int(chars_of_step)
        if steps and (num > MOST or chars > MOST_CHARS):
            break
        steps.append((step, int(num_of_step), int(chars_of_step)))
    return steps


def _make(run: Run, stretch: Stretch) -> bool:
    """False if the history changed meanwhile."""
    seen = _read_state(run, stretch)
    columns = read_columns(run.pk, first=stretch.first, last=stretch.last)
    groups = fetch_all(TEXTS, [run.pk, stretch.first, stretch.last])
    if [len(texts) for texts, _ in groups] != columns.group_sizes.tolist():
        return False
    block = _pack(run, stretch, columns, groups)
    with transaction.atomic():
        # Ingestion and resumes lock this row.
        Run.objects.select_for_update().only("pk").get(pk=run.pk)
        blocks = CompletionBlock.objects.filter(pk__in=stretch.replaced)
        if _read_state(run, stretch) != seen or blocks.count() < len(stretch.replaced):
            return False
        blocks.delete()
        block.save(force_insert=True)
    return True


def _read_state(run: Run, stretch: Stretch) -> dict[str, object]:
    """Changes when groups are added or superseded, or completions deleted."""
    groups = Group.objects.current().filter(run=run)
    groups = groups.filter(step__range=(stretch.first, stretch.last))
    deleted = Run.objects.values_list("completions_deleted_at", flat=True)
    seen: dict[str, object] = groups.aggregate(num=Count("pk"), last=Max("pk"))
    return seen | {"deleted": deleted.get(pk=run.pk)}


def _pack(
    run: Run,
    stretch: Stretch,
    columns: Columns,
    groups: Sequence[tuple[list[str], str | None]],
) -> CompletionBlock:
    """`groups`: texts and turns in the order of the columns."""
    packed = pack_columns(run, columns)
    is_near = [
        near for own in groups for near in find_near_duplicates(policy_texts(*own))
    ]
    packed["kinds"][np.array(is_near, bool)] |= NEAR
    texts = [text for texts, _ in groups for text in texts]
    num_bits = choose_num_bits(texts)
    return CompletionBlock(
        run=run,
        first_step=stretch.first,
        last_step=stretch.last,
        num_completions=columns.num_completions,
        num_chars=stretch.num_chars,
        rule_names=list(columns.rule_names),
        steps=columns.steps.tobytes(),
        tallies=tally_flags(packed),
        num_bits=num_bits,
        signatures=sign(texts, num_bits).tobytes(),
        **{name: column.tobytes() for name, column in packed.items()},
    )
