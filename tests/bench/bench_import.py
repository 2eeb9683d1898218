"""How fast a file becomes a dataset: python tests/bench/bench_import.py [MEGABYTES].

A JSONL file of so many megabytes is imported as a worker does it, from bytes to commit,
in one process, into a throw-away PostgreSQL of its own with its default durability.
With --job it is a job, which reports every second how far it is.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.database import throwaway_database
from tests.bench.machine import heading, say, table

# Models are imported once Django is set up.
if TYPE_CHECKING:
    from dashboard.datasets.mapping import Mapping
    from dashboard.datasets.models import DatasetVersion, Upload

THOUGHT = "Let us try 3 * 4 = 12, then $\\frac{24}{2} + 5$, which is “17”, not 24.\n"


def main(num_megabytes: int, *, is_job: bool) -> None:
    with throwaway_database():
        measure(num_megabytes, is_job=is_job)


def measure(num_megabytes: int, *, is_job: bool) -> None:
    from dashboard.datasets.mapping import Mapping

    upload = written_upload(num_megabytes * 10**6)
    mapping = Mapping(prompt="question", answer="answer", columns=("level", "solution"))
    idle = peak_memory()

    wall, cpu = time.perf_counter(), time.process_time()
    version = (do_job if is_job else do_import)(upload, mapping)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu

    row = [
        f"{upload.num_bytes / 1e6:,.0f}",
        f"{version.num_rows:,}",
        f"{wall:,.1f}",
        f"{cpu:,.1f}",
        f"{upload.num_bytes / wall / 1e6:,.1f}",
        f"{peak_memory() / 2**20:,.0f}",
        f"{idle / 2**20:,.0f}",
    ]
    names = ("MB of JSONL", "rows", "s", "s of CPU", "MB a second")
    names += ("peak MiB", "of it before the import")
    say(heading("tests.bench.bench_import", packages=("django", "psycopg")))
    say(table(names, [row]))


def do_import(upload: Upload, mapping: Mapping) -> DatasetVersion:
    from dashboard.datasets.imports import import_upload

    return import_upload(upload=upload, mapping=mapping, name="Bench", user=None)


def do_job(upload: Upload, mapping: Mapping) -> DatasetVersion:
    from dashboard.datasets.imports import start_job
    from dashboard.jobs.kinds import Context
    from dashboard.jobs.queue import claim_job
    from dashboard.jobs.runner import run

    job, _ = start_job(upload=upload, mapping=mapping, name="Bench", user=None)
    assert job.job
    claim = claim_job(job.job.pk, "bench")
    assert claim
    run(Context(claim))
    job.refresh_from_db()
    assert job.version, job.error
    return job.version


def written_upload(num_bytes: int) -> Upload:
    """A file of rows of about 1,100 bytes, as sets of mathematics problems have."""
    from dashboard.accounts.models import Team
    from dashboard.datasets.models import Upload

    team = Team.objects.create(slug="bench", name="Bench")
    upload = Upload(
        team=team, filename="bench.jsonl", stored_name="bench.jsonl", format="jsonl"
    )
    upload.path.parent.mkdir(parents=True)
    with upload.path.open("w", encoding="utf-8") as file:
        number = 0
        while number % 1_000 or file.tell() < num_bytes:
            file.write(json.dumps(record(number), ensure_ascii=False) + "\n")
            number += 1
    upload.num_bytes = upload.path.stat().st_size
    upload.save()
    return upload


def record(number: int) -> dict[str, object]:
    return {
        "question": f"Problem {number}: " + THOUGHT * 4,
        "solution": THOUGHT * (6 + number % 8),
        "answer": str(number * 17),
        "level": number % 5,
        "difficulty": number / 7,
    }


def peak_memory() -> int:
    """Bytes that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sizes = [int(word) for word in sys.argv[1:] if word.isdigit()]
    main(sizes[0] if sizes else 1_000, is_job="--job" in sys.argv)
