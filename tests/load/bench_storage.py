"""A database of 50 million completions: python -m tests.load.bench_storage FOLDER.

What a completion takes, how quickly ingest and pages are beside so many, and what
deleting a run of ten million costs. `FOLDER` holds the database while it is filled, 30
GB, and is deleted at the end; a second call goes on with one that is full. It takes
about an hour of two cores.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django
import numpy as np
import psycopg

from dashboard.local.postgres import EmbeddedPostgres
from dashboard.project.cache import ByteCache
from tests.bench.machine import heading, say, table

if TYPE_CHECKING:
    from dashboard.accounts.models import Team
    from dashboard.runs.models import Run

TIMES = 7
PATTERN_STEPS = 1_000
A_STEP = 1_024  # completions: 128 groups of 8, or 16 of 64
SMALL, LARGE = 8, 64
# Steps of each run, and completions of a group: one run of 10 million completions, 16
# of 2 million, 70 of 100,000.
SIZES = {"large": (10_000, SMALL)}
SIZES |= {f"middle-{i}": (2_000, SMALL if i < 3 else LARGE) for i in range(16)}
SIZES |= {f"small-{i}": (100, SMALL) for i in range(70)}
TABLES = (
    "samples_groupcompletions",
    "samples_group",
    "samples_completionblock",
    "runs_runevent",
    "runs_step",
)
INGEST = """
import sys, django
django.setup()
from tests.bench.bench_ingest import group_log, repeat
stored = repeat(group_log, seconds=float(sys.argv[1]))
print(stored.num_steps / sum(stored.seconds) * 256)
"""


def main(folder: Path) -> None:
    with database(folder):
        fill()
        index(large_run())
        show_sizes()
        show_pages()
        show_deletion()
    shutil.rmtree(folder)


@contextmanager
def database(folder: Path) -> Iterator[None]:
    """With the default durability; its data is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    sockets = folder / "s"
    server = EmbeddedPostgres(
        folder=folder / "pg", socket_folder=sockets, log=folder / "postgres.log"
    )
    server.start()
    try:
        os.environ["DATABASE_URL"] = f"postgresql://cohort@/cohort?host={sockets}"
        os.environ.setdefault("REDIS_URL", "redis://127.0.0.1:1/0")  # unused
        os.environ["COHORT_DATA"] = str(folder / "data")
        os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0, skip_checks=True)
        yield
    finally:
        server.stop()


def fill() -> None:
    """Existing runs are kept."""
    from dashboard.accounts.models import Team
    from dashboard.runs.models import Run

    team, _ = Team.objects.get_or_create(slug="bench", name="Bench")
    known = set(Run.objects.exclude(seq=0).values_list("name", flat=True))
    patterns = make_patterns(team)
    rows = [] if known else [["0", f"{ingest_rate():,.0f}", load()]]
    begun, num = time.perf_counter(), len(patterns) * PATTERN_STEPS
    for name, (num_steps, group_size) in SIZES.items():
        if name not in known:
            Run.objects.filter(name=name).delete()  # an incomplete one
            make_again(patterns[group_size], name, num_steps, group_size)
        num += num_steps
        if name not in known and name in ("large", list(SIZES)[-1]):
            rows.append([completions(num), f"{ingest_rate():,.0f}", load()])
    if rows:
        took = time.perf_counter() - begun
        say(f"{completions(num)} completions, in {took:.0f} s.\n")
        say(table(("completions there", "ingested a second", "load average"), rows))


def make_patterns(team: Team) -> dict[int, Run]:
    """By the completions of a group."""
    from dashboard.runs.models import Run
    from tests.dashboard.completions.factories import make_run
    from tests.load.many_completions import join_groups, make_completions

    small = Run.objects.filter(name="pattern").first()
    if small is None:
        small = make_run(team, "pattern", num_steps=PATTERN_STEPS)
        num_groups = A_STEP // SMALL
        make_completions(small, num_steps=PATTERN_STEPS, num_groups=num_groups)
    large = Run.objects.filter(name="pattern of large groups").first()
    if large is None:
        large = make_run(team, "pattern of large groups", num_steps=PATTERN_STEPS)
        join_groups(small, large, num_steps=PATTERN_STEPS)
    return {SMALL: small, LARGE: large}


def make_again(pattern: Run, name: str, num_steps: int, group_size: int) -> None:
    """A run of the pattern's steps, over and over; it has a seq once it is whole."""
    from dashboard.runs.models import Run
    from tests.dashboard.completions.factories import make_run
    from tests.load.many_completions import make_events, repeat_completions

    run = make_run(pattern.team, name, num_steps=num_steps, last_step=num_steps)
    for later in range(0, num_steps, PATTERN_STEPS):
        num = min(PATTERN_STEPS, num_steps - later)
        repeat_completions(pattern, run, num_steps=num, later=later)
    make_events(run, num_steps=num_steps, num_groups=A_STEP // group_size)
    add_steps(Run.objects.get(pk=run.pk))
    Run.objects.filter(pk=run.pk).update(seq=num_steps * A_STEP // group_size)


def add_steps(run: Run) -> None:
    """40 metrics a step."""
    from django.db import connection

    from dashboard.runs.charts.downsampling import build_rollups

    run.metric_names = ["reward/mean", *(f"part/metric_{n:02d}" for n in range(39))]
    run.save(update_fields=["metric_names"])
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runs_step (run_id, step, epoch, seq, time, values)"
            " SELECT %s, step, 1, step, '2026-03-01'::timestamptz + step"
            "        * interval '6 s', ARRAY(SELECT random() + step * 0 FROM"
            "        generate_series(1, 40))"
            "   FROM generate_series(1, %s) step",
            [run.pk, run.num_steps],
        )
    build_rollups(run.pk, first_step=1, last_step=run.num_steps)


def completions(num_steps: int) -> str:
    return f"{num_steps * A_STEP:,}"


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def ingest_rate(seconds: float = 10.0) -> float:
    """Completions per second, in a separate process."""
    command = [sys.executable, "-c", INGEST, str(seconds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def index(run: Run) -> None:
    """Blocks of the pattern's steps, which are those of all the others but for ids."""
    from dashboard.completions.search.columns import GROUP_ID, STEP
    from dashboard.completions.search.indexing import index_run
    from dashboard.runs.models import Run

    run.completion_blocks.all().delete()
    Run.objects.filter(pk=run.pk).update(last_step=PATTERN_STEPS)
    begun = time.perf_counter()
    num_blocks = index_run(run, until=time.monotonic() + 86_400)
    took = time.perf_counter() - begun
    say(f"{completions(PATTERN_STEPS)}: {num_blocks} blocks made in {took:.0f} s.\n")
    blocks = list(run.completion_blocks.all())
    for later in range(PATTERN_STEPS, run.num_steps, PATTERN_STEPS):
        begins = [run.groups.filter(step=s).earliest("pk") for s in (1, later + 1)]
        for block in blocks:
            steps = np.frombuffer(block.steps, STEP).copy()
            steps["step"] += later
            ids = np.frombuffer(block.group_ids, GROUP_ID) + begins[1].pk - begins[0].pk
            given = {f.attname: getattr(block, f.attname) for f in block._meta.fields}
            given |= {"id": None, "steps": steps.tobytes(), "group_ids": ids.tobytes()}
            given["first_step"] += later
            given["last_step"] += later
            type(block).objects.create(**given)
    Run.objects.filter(pk=run.pk).update(last_step=run.num_steps)


def large_run() -> Run:
    from dashboard.runs.models import Run

    return Run.objects.get(name="large")


def show_sizes() -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute("VACUUM (ANALYZE)")
        cursor.execute(
            "SELECT sum(cardinality(end_reasons)), sum(num_bytes)"
            "  FROM samples_groupcompletions"
        )
        num, held = cursor.fetchone()
        rows = [size_of(cursor, name, float(num)) for name in TABLES]
        cursor.execute("SELECT pg_database_size(current_database())")
        whole = float(cursor.fetchone()[0])
    rows.append(["the database", f"{whole / 1e9:,.1f} GB", "", f"{whole / num:,.1f}"])
    say(f"{num:,} completions of {held / num:,.0f} bytes of text.\n")
    say(table(("table, index", "size", "of it texts", "bytes a completion"), rows))


def size_of(cursor: Any, name: str, num: float) -> list[str]:
    cursor.execute(
        "SELECT pg_relation_size(%s), coalesce(pg_total_relation_size(reltoastrelid),"
        "       0), pg_indexes_size(%s) FROM pg_class WHERE oid = %s::regclass",
        [name, name, name],
    )
    heap, beside, indexes = map(float, cursor.fetchone())
    size = heap + beside + indexes
    parts = f"rows {heap / num:,.1f}, beside {beside / num:,.1f}, "
    parts += f"indexes {indexes / num:,.1f}"
    return [name, f"{size / 1e9:,.2f} GB", parts, f"{size / num:,.1f}"]


def show_pages() -> None:
    from django.conf import settings
    from django.test import Client

    from dashboard.accounts.models import Membership, Role, User

    run = large_run()
    settings.ALLOWED_HOSTS = ["testserver"]
    user, _ = User.objects.get_or_create(username="bench")
    Membership.objects.get_or_create(
        team=run.team, user=user, defaults={"role": Role.OWNER}
    )
    client = Client()
    client.force_login(user)
    group = run.groups.order_by("pk")[50_000]
    at = f"/{run.team.slug}/runs/{run.pk}/"
    pages = {
        "the run list": f"/{run.team.slug}/runs/",
        "the run": at,
        "its groups": f"{at}groups/?step=9000",
        "a group": f"{at}groups/{group.step}/{group.prompt_index}/",
        "a prompt": f"{at}prompts/{group.prompt_index}/?first_step=9000",
        "completions, newest first": f"{at}completions/",
        "highest reward": f"{at}completions/?sort=-reward",
        "a prompt's": f"{at}completions/?prompt={group.prompt_index}",
        "text in one of 100,000": f"{at}completions/?text=zyzzyvas",
        "text in all": f"{at}completions/?text=the",
        "words in all": f"{at}completions/?text=the&match=words",
        "its export, a tenth of the steps": f"{at}export/?first_step=9000",
        "its export, all steps": f"{at}export/",
    }
    client.get(at)  # loads templates
    rows = [time_page(client, name, page) for name, page in pages.items()]
    say(heading("tests.load.bench_storage", packages=("django", "psycopg")))
    say(f"load average {load()}\n")
    say(table(("page", "first", f"median of {TIMES}", "best", "its CPU"), rows))


def time_page(client: Any, name: str, address: str) -> list[str]:
    """The first with empty caches."""
    from dashboard.completions.search import blocks

    blocks.column_cache = ByteCache(blocks.MAX_BYTES, size=attrgetter("nbytes"))
    taken, worked = [], []
    for _ in range(1 + TIMES):
        begun, work = time.perf_counter(), time.process_time()
        assert client.get(address).status_code == 200
        taken.append(time.perf_counter() - begun)
        worked.append(time.process_time() - work)
    medians = (statistics.median(taken[1:]), statistics.median(worked[1:]))
    times = (taken[0], medians[0], min(taken), medians[1])
    return [name, *(f"{each * 1000:.0f} ms" for each in times)]


def show_deletion() -> None:
    """By a worker's task, during ingest of another run in a separate process."""
    from django.utils import timezone

    from dashboard.runs.models import Run
    from dashboard.runs.trash import delete_run

    run = large_run()
    alone = ingest_rate()
    before = database_size()
    Run.objects.filter(pk=run.pk).update(trashed_at=timezone.now())
    with beside(ingest_rate) as rates, beside(most_waiting) as waiting:
        begun = time.perf_counter()
        delete_run(run, None)
        reported = time.perf_counter() - begun
        delete_what_is_left(run)
        took = time.perf_counter() - begun
    say(
        f"\nA run of {completions(run.num_steps)}: gone from all pages in "
        f"{reported * 1000:.0f} ms, last row deleted after {took:.1f} s; load average "
        f"{load()}. Ingest of another run: {alone:,.0f} a second before, "
        f"{rates[0]:,.0f} beside; at most {waiting[0]:.0f} sessions waited for locks.\n"
    )
    rows = [vacuum(name) for name in TABLES[:4]]
    say(table(("table", "dead rows", "vacuum", "pages, of them frozen"), rows))
    after = database_size()
    say(f"The database: {before / 1e9:.2f} GB before, {after / 1e9:.2f} GB after.\n")
    num = 0
    while database_size() <= after + 1e8:
        num += PATTERN_STEPS
        make_again(Run.objects.get(name="pattern"), f"later-{num}", num, SMALL)
    say(f"So much can be ingested before it grows again: {completions(num)}.\n")


def delete_what_is_left(run: Run) -> None:
    from dashboard.runs.models import Run
    from dashboard.runs.trash import delete_rows

    while Run.everywhere.filter(pk=run.pk).exists():
        delete_rows()


@contextmanager
def beside(measure: Callable[[], float]) -> Iterator[list[float]]:
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(measure()))
    thread.start()
    yield found
    thread.join()


def most_waiting(seconds: float = 10.0) -> float:
    """Of sessions that wait for a lock at a time."""
    most = 0
    until = time.monotonic() + seconds
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as own:
        while time.monotonic() < until:
            found = own.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            most = max(most, *(count for (count,) in found))
            time.sleep(0.05)
    return most


def database_size() -> float:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_database_size(current_database())")
        return float(cursor.fetchone()[0])


def vacuum(name: str) -> list[str]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute(
            "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = %s", [name]
        )
        (dead,) = cursor.fetchone()
        begun = time.perf_counter()
        cursor.execute(f"VACUUM (ANALYZE) {name}")
        took = time.perf_counter() - begun
        cursor.execute(
            "SELECT relpages, relallfrozen FROM pg_class WHERE relname = %s", [name]
        )
        pages, frozen = cursor.fetchone()
    return [
        name,
        f"{dead:,}",
        f"{took:.1f} s",
        f"{pages:,}, {frozen / max(1, pages):.0%}",
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
