"""Pages of a run's completions: python -m tests.bench.bench_completions [STEPS].

A run of STEPS (10,000 unless said) × 128 × 8 completions of about 240 characters beside
one of a twentieth, made by SQL; then how quickly the worker makes blocks of them, pages
as the web process makes them, and ingest with a worker that makes blocks beside it.
10,000 steps take 20 GB of disk, half of it for the log of PostgreSQL, and half an hour.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from tests.bench.database import throwaway_database
from tests.bench.machine import heading, say, table

if TYPE_CHECKING:
    from dashboard.runs.models import Run

TIMES = 7
GROUPS = 128
WHERE = re.compile(r'aria-label="Pages[^>]*>\s*<span class="text-quiet">([^<]*)<')
LOOKED = re.compile(r"Looked through ([\d,]+) of the ([\d,]+)")
PAGES = {
    "newest first": "",
    "the middle": "?page={middle}",
    "highest reward, millions alike": "?sort=-reward",
    "by advantage, the middle": "?sort=-advantage&page={middle}",
    "longest": "?sort=-length",
    "reward 0.7 to 0.9, by length": "?min_reward=0.7&max_reward=0.9&sort=length",
    "reward ≥ 5: none": "?min_reward=5",
    "cut, by advantage": "?end=length&sort=advantage",
    "right, a fifth of the steps": "?first_step={a}&last_step={b}&outcome=right",
    "one prompt": "?prompt=131",
    "a rule ≤ 0, longest": "?rule=answer&max_score=0&sort=-length",
    "four ranges, by advantage": "?min_reward=0.5&min_advantage=0.1&max_length=100"
    "&rule=format&min_score=0.9&sort=-advantage",
    "high reward, short": "?surprise=high_short&sort=-reward",
    "near-duplicates": "?surprise=near",
    "right, low reward": "?surprise=right_low",
    "text in all": "?text=the",
    "text in one of 100,000": "?text=zyzzyvas",
    "text in one of 1,000": "?text=answer+is+77.",
    "three letters, in none": "?text=qqq",
    "common letters, in none": "?text=the+the+the+and+the&sort=-reward",
    "one letter, in none": "?text=%26",
    "words in all": "?text=the&match=words",
    "words, by reward": "?text=multiply+divide+subtract&match=words&sort=-reward",
    "a phrase": "?text=%22check+the+multiply%22&match=words",
    "none of these words": "?text=-the&match=words",
}
INGEST = """
import sys, django
django.setup()
from tests.bench.bench_ingest import group_log, repeat
stored = repeat(group_log, seconds=float(sys.argv[1]))
print(stored.num_steps / sum(stored.seconds) * 256)
"""


def main(num_steps: int) -> None:
    with throwaway_database():
        runs = [make(name, steps) for name, steps in sizes(num_steps).items()]
        for run in runs:
            index(run)
        show_pages(runs[-1])
        show_plans(runs[-1])
        show_ingest(runs[-1])


def sizes(num_steps: int) -> dict[str, int]:
    return {"small": max(1, num_steps // 20), "large": num_steps}


def make(name: str, num_steps: int) -> Run:
    from dashboard.accounts.models import Team
    from tests.bench.many_completions import make_completions
    from tests.dashboard.samples.factories import make_run

    team, _ = Team.objects.get_or_create(slug="bench", name="Bench")
    run = make_run(team, name, num_steps=num_steps)
    make_completions(run, num_steps=num_steps, num_groups=GROUPS)
    return run


def index(run: Run) -> None:
    from django.db import connection

    from dashboard.samples.search.making import index_run

    begun = time.perf_counter()
    num_blocks = index_run(run, until=time.monotonic() + 86_400)
    took = time.perf_counter() - begun
    num = run.num_steps * GROUPS * 8
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE) samples_completionblock")
        cursor.execute("SELECT pg_total_relation_size('samples_completionblock')")
        (size,) = cursor.fetchone()
    say(
        f"{num:,} completions: {num_blocks} blocks made in {took:.0f} s, "
        f"{num / took:,.0f} a second; all blocks take {size / 1e6:,.0f} MB.\n"
    )


def show_pages(run: Run) -> None:
    from django.conf import settings
    from django.test import Client

    from dashboard.accounts.models import Membership, Role, User

    settings.ALLOWED_HOSTS = ["testserver"]
    user = User.objects.create_user("bench")
    Membership.objects.create(team=run.team, user=user, role=Role.OWNER)
    client = Client()
    client.force_login(user)
    page = f"/{run.team.slug}/runs/{run.pk}/completions/"
    client.get(page)  # loads templates
    steps = run.num_steps
    places = {"middle": steps * GROUPS * 8 // 100, "a": steps // 5, "b": steps // 5 * 2}
    rows = [
        time_page(client, name, page + query)
        for name, query in (
            (name, query.format(**places)) for name, query in PAGES.items()
        )
    ]
    rows.append(time_audit(client, f"/{run.team.slug}/runs/{run.pk}/audit/"))
    say(heading("tests.bench.bench_completions", packages=("django", "psycopg")))
    head = (
        "page",
        "first",
        "median of 7",
        "best",
        "its CPU",
        "says",
        "looked through, of",
    )
    say(table(head, rows))


def time_page(client: Any, name: str, address: str) -> list[str]:
    """The first with nothing kept by the process."""
    from dashboard.samples.search.kept_columns import kept

    kept.clear()
    taken, worked = [], []
    for _ in range(1 + TIMES):
        begun, work = time.perf_counter(), time.process_time()
        response = client.get(address)
        taken.append(time.perf_counter() - begun)
        worked.append(time.process_time() - work)
        assert response.status_code == 200
    html = response.content.decode()
    where, looked = WHERE.search(html), LOOKED.search(html)
    medians = (statistics.median(taken[1:]), statistics.median(worked[1:]))
    times = (taken[0], medians[0], min(taken), medians[1])
    return [
        name,
        *(f"{each * 1000:.0f} ms" for each in times),
        where[1] if where else "none",
        " of ".join(looked.groups()) if looked else "",
    ]


def time_audit(client: Any, address: str) -> list[str]:
    """Read anew each time, as after each step of a run that goes on."""
    from dashboard.insights.audit.findings import _audit_once

    taken, worked = [], []
    for _ in range(1 + TIMES):
        _audit_once.cache_clear()
        begun, work = time.perf_counter(), time.process_time()
        html = client.get(address).content.decode()
        taken.append(time.perf_counter() - begun)
        worked.append(time.process_time() - work)
    said = re.search(r"texts of ([\d,]+) completions, sampled at ([^.(]*)", html)
    medians = (statistics.median(taken[1:]), statistics.median(worked[1:]))
    times = (taken[0], medians[0], min(taken), medians[1])
    return [
        "the audit",
        *(f"{each * 1000:.0f} ms" for each in times),
        f"{said[1]} texts at {said[2]}" if said else "",
        "",
    ]


def show_plans(run: Run) -> None:
    from psycopg import sql

    from dashboard.samples.models import CompletionBlock, Group
    from dashboard.samples.search import blocks, texts

    ids = CompletionBlock.objects.filter(run=run).values_list("pk", flat=True)
    groups = Group.objects.filter(run=run).order_by("pk")
    some = list(
        groups.values_list("pk", flat=True)[:: max(1, run.num_steps // 8)][:256]
    )
    column = list(ids)
    explain("the blocks' heads", blocks.HEADS, [run.pk])
    part = blocks.PART.format(column=sql.Identifier("rewards")).as_string()
    explain("a column", part, [column, [0] * len(column), [2**30] * len(column)])
    part = blocks.PART.format(column=sql.Identifier("signatures")).as_string()
    row = [column, [8_192] * len(column), [8_192] * len(column)]
    explain("a row of bits of each block", part, row)
    look = texts.LOOK.format(condition=texts.HAS_TEXT)
    explain("256 texts", look, [some, [3] * len(some), "the"])


def explain(name: str, query: str, given: list[object]) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {query}", given)
        say(f"\n{name}\n" + "\n".join(line for (line,) in cursor))


def show_ingest(run: Run, *, seconds: float = 10.0, pairs: int = 3) -> None:
    """In a process of its own, alone and beside one that makes blocks, in turns."""
    rows = []
    for _ in range(pairs):
        alone = ingest_rate(seconds)
        worker = subprocess.Popen([sys.executable, "-c", WORKER, str(run.pk)])
        try:
            beside = ingest_rate(seconds)
        finally:
            worker.terminate()
            worker.wait()
        rows.append([f"{alone:,.0f}", f"{beside:,.0f}"])
    say(table(("completions a second, alone", "beside the worker"), rows))


# Blocks of steps are made over and over, none is kept.
WORKER = """
import sys, django
django.setup()
from dashboard.runs.models import Run
from dashboard.samples.search import making
run = Run.objects.get(pk=int(sys.argv[1]))
stretch = making.Stretch(first=1, last=64, num_chars=0, replaced=())
while True:
    columns = making.read_columns(run.pk, first=1, last=64)
    making._pack(run, stretch, columns, making._read_texts(run, stretch))
"""


def ingest_rate(seconds: float) -> float:
    command = [sys.executable, "-c", INGEST, str(seconds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
