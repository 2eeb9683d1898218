"""An upgrade beside people and runs: python -m tests.load.bench_upgrade.

A million completions are stored as an older version had them. While `manage.py migrate`
brings them up to date, one thread reads a run, its steps, groups and completions, and
one stores them; what each waited at most is told. It takes some minutes.
"""

from __future__ import annotations

import io
import multiprocessing
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.bench.database import throwaway_database
from tests.bench.machine import heading, say, table
from tests.upgrades.versions import VERSIONS

if TYPE_CHECKING:
    from psycopg import Connection

NUM_GROUPS = 125_000  # of eight
GROUPS_A_STEP = 16
PAUSE_SECONDS = 0.02
ALONE_SECONDS = 2  # without a migration, before it and behind it
FROM = ("a row each completion", "0.1.0")
GROUPS = """
INSERT INTO samples_group (run_id, step, prompt_index, epoch, seq, prompt, answer,
       reward_mean, reward_std, signal, rule_names, is_trained, num_notes)
SELECT %(run)s, 1000 + slot / %(a_step)s, slot %% %(a_step)s, 1, slot,
       'What is ' || slot || '?', slot::text, 0.6, 0.5, 'mixed', '{right,form}', true, 0
  FROM generate_series(0, %(groups)s - 1) slot
"""
TEXT = "repeat(md5((g.id * 8 + position)::text), 20)"  # 640 letters
ROWS = f"""
INSERT INTO samples_completion (group_id, position, text, num_tokens, end_reason,
       reward, advantage, mean_logprob, rule_scores)
SELECT g.id, position, {TEXT}, 200, 'stop', 0.5, 0.1, -0.5, '{{1,0}}'
  FROM samples_group g, generate_series(0, 7) position WHERE g.step >= 1000
"""  # noqa: S608 - a text of ours, above
PACKED = f"""
INSERT INTO samples_groupcompletions (group_id, texts, num_bytes, num_tokens,
       end_reasons, rewards, advantages, mean_logprobs, rule_scores)
SELECT g.id, array_agg({TEXT}), 5120, array_agg(200), array_agg('stop'::text),
       array_agg(0.5), array_agg(0.1), array_agg(-0.5), array_fill(1, ARRAY[16])
  FROM samples_group g, generate_series(0, 7) position WHERE g.step >= 1000
 GROUP BY g.id
"""  # noqa: S608 - a text of ours, above
STEPS = """
INSERT INTO runs_step (run_id, step, epoch, seq, time, values)
SELECT %(run)s, step, 1, step, now(), '{0.5,0.1,null}'
  FROM generate_series(4, 1000) step
"""
# Where a statement's table is not there yet or no more, the next one is tried.
READS = (
    ("SELECT * FROM runs_run WHERE id = %(run)s",),
    ("SELECT * FROM runs_step WHERE run_id = %(run)s ORDER BY step DESC LIMIT 100",),
    ("SELECT * FROM samples_group WHERE run_id = %(run)s AND step = 1000",),
    (
        """SELECT c.* FROM samples_completion c JOIN samples_group g ON g.id = group_id
        WHERE run_id = %(run)s AND step = 1000""",
        """SELECT c.* FROM samples_groupcompletions c JOIN samples_group g
        ON g.id = group_id WHERE run_id = %(run)s AND step = 1000""",
    ),
)
ADDED = """
WITH g AS (INSERT INTO samples_group (run_id, step, prompt_index, epoch, seq, prompt,
       answer, reward_mean, reward_std, signal, rule_names, is_trained, num_notes)
       VALUES (%(run)s, %(step)s, 0, 1, 1, '', '', 0, 0, 'tied', '{a}', true, 0)
       RETURNING id)
"""
WRITES = (
    ("UPDATE runs_run SET seq = seq + 1 WHERE id = %(run)s",),
    (
        "INSERT INTO runs_step (run_id, step, epoch, seq, time, values) "
        "VALUES (%(run)s, %(step)s, 1, 1, now(), '{1}')",
    ),
    (
        f"""{ADDED} INSERT INTO samples_completion (group_id, position, text,
        num_tokens, end_reason, reward, advantage, mean_logprob, rule_scores)
        SELECT g.id, position, 'four', 2, 'stop', 1, 0, 0, '{{1}}'
        FROM g, generate_series(0, 7) position""",  # noqa: S608 - a text of ours, above
        f"""{ADDED} INSERT INTO samples_groupcompletions (group_id, texts, num_bytes,
        num_tokens, end_reasons, rewards, advantages, mean_logprobs, rule_scores)
        SELECT g.id, '{{four}}', 4, '{{2}}', '{{stop}}', '{{1}}', '{{0}}', '{{0}}',
        '{{1}}' FROM g""",  # noqa: S608 - a text of ours, above
    ),
)


@dataclass
class Beside:
    """What goes on meanwhile, over and over, and how long each took."""

    statements: tuple[tuple[str, ...], ...]
    first_step: int
    run: int
    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def go_on(self, connection: Connection[object], is_over: threading.Event) -> None:
        step = self.first_step
        while not is_over.wait(PAUSE_SECONDS):
            began = time.perf_counter()
            try:
                with connection.transaction():
                    for forms in self.statements:
                        self._act(connection, forms, step)
            except Exception as error:  # noqa: BLE001 - told in the table
                self.failures.append(str(error).splitlines()[0])
            self.seconds.append(time.perf_counter() - began)
            step += 1

    def _act(
        self, connection: Connection[object], forms: tuple[str, ...], step: int
    ) -> None:
        from psycopg.errors import UndefinedTable

        *others, last = forms
        named = {"run": self.run, "step": step}
        for form in others:
            with suppress(UndefinedTable), connection.transaction():
                connection.execute(form, named)
                return
        connection.execute(last, named)


def main() -> None:
    say(heading("An upgrade beside people and runs"))
    # Django knows one database a process.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as apart:
        rows = [apart.apply(measure, (version,)) for version in FROM]
    say(
        table(
            (
                "from",
                "migrations",
                "took",
                "longest of them",
                "reads",
                "longest read",
                "writes",
                "longest write",
                "failed",
            ),
            rows,
        )
    )


def measure(version: str) -> list[str]:
    with throwaway_database(VERSIONS[version]):
        run = fill(version)
        reader = Beside(READS, first_step=1_000, run=run)
        writer = Beside(WRITES, first_step=1_000_000, run=run)
        with both(reader, writer):
            time.sleep(ALONE_SECONDS)
            began = time.perf_counter()
            told = migrate()
            took = time.perf_counter() - began
            time.sleep(ALONE_SECONDS)
    longest = max(told, key=lambda name: told[name])
    return [
        version,
        str(len(told)),
        f"{took:.1f} s",
        f"{longest} ({told[longest]:.1f} s)",
        *of(reader),
        *of(writer),
        "; ".join(sorted({*reader.failures, *writer.failures})) or "none",
    ]


def of(beside: Beside) -> tuple[str, str]:
    middle = np.median(beside.seconds) * 1_000
    return f"{len(beside.seconds):,} of {middle:.1f} ms", f"{max(beside.seconds):.2f} s"


def fill(version: str) -> int:
    """The run that has them all."""
    from django.db import connection, transaction
    from django.db.migrations.executor import MigrationExecutor

    from tests.upgrades.filling import Filler

    state = MigrationExecutor(connection).loader.project_state(VERSIONS[version])
    with transaction.atomic():
        run = Filler(state.apps).fill().run
    with connection.cursor() as cursor:
        numbers = {"run": run, "a_step": GROUPS_A_STEP, "groups": NUM_GROUPS}
        cursor.execute("SET statement_timeout = 0")
        cursor.execute(STEPS, numbers)
        cursor.execute(GROUPS, numbers)
        cursor.execute(ROWS if version == FROM[0] else PACKED)
        cursor.execute("VACUUM ANALYZE")
    return run


@contextmanager
def both(*those: Beside) -> Iterator[None]:
    """Each on a connection of its own, with the limits of a web process."""
    import psycopg
    from django.db import connection

    from dashboard.database import limit_sessions

    is_over = threading.Event()
    limited: dict[str, dict[str, Any]] = {"default": {"OPTIONS": {}}}
    limit_sessions(limited, statement_seconds=15, pooled=False)
    own_params = connection.get_connection_params()
    # Django prepares nothing: what is prepared fails once a column is added.
    named = ("dbname", "user", "host", "prepare_threshold")
    params = {name: own_params[name] for name in named} | limited["default"]["OPTIONS"]
    threads, opened = [], []
    for each in those:
        own = psycopg.connect(**params, autocommit=True)
        opened.append(own)
        act: Callable[..., None] = each.go_on
        threads.append(threading.Thread(target=act, args=(own, is_over), daemon=True))
        threads[-1].start()
    try:
        yield
    finally:
        is_over.set()
        for thread, own in zip(threads, opened, strict=True):
            thread.join(10)
            own.close()


def migrate() -> dict[str, float]:
    """Each migration's seconds, as the command tells them."""
    from django.core.management import call_command

    told = io.StringIO()
    with redirect_stdout(told):  # permissions are told of on it
        call_command("migrate", verbosity=2, no_color=True, skip_checks=True)
    found = re.findall(r"Applying (\S+?)\.\.\. OK \(([\d.]+)s\)", told.getvalue())
    return {name: float(seconds) for name, seconds in found}


if __name__ == "__main__":
    main()
