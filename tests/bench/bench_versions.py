"""What is made of whole versions: python -m tests.bench.bench_versions [ROWS].

A view saved as a dataset, a download, a split, a difference and a leak check, as a
worker does them, at a quarter of the rows and at all of them: work that grows with the
rows takes four times as long. Each in a process of its own would start with less
memory; the peak is that of all so far, and grows where one needs more than the others.
CPU is this process's and its database connection's: on a busy machine it tells more.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tests.bench.bench_rows import lines
from tests.bench.database import throwaway_database
from tests.bench.machine import heading, say, table

# Models are imported once Django is set up.
if TYPE_CHECKING:
    from dashboard.datasets.models import DatasetVersion

COPY = "COPY datasets_datasetrow ({}) FROM STDIN"
FIELDS = "version_id, position, prompt, is_chat, answer, columns"
# Turned round the middle, one answer in 100 changed, one prompt in 50 nearly the same.
_OTHER = """
INSERT INTO datasets_datasetrow (version_id, position, prompt, is_chat, answer, columns)
SELECT %(new)s, (position + %(half)s) %% %(all)s,
       CASE position %% 50 WHEN 7 THEN prompt || ' Again.' ELSE prompt END, is_chat,
       CASE position %% 100 WHEN 3 THEN 'changed' ELSE answer END, columns
  FROM datasets_datasetrow WHERE version_id = %(old)s
"""


def main(num_rows: int) -> None:
    with throwaway_database():
        measure(num_rows)


def measure(num_rows: int) -> None:
    from dashboard.accounts.models import Team

    small, large = (
        Timings(Team.objects.create(slug=f"b{size}", name="Bench"), size)
        for size in (num_rows // 4, num_rows)
    )
    small.run()
    large.run()
    rows = [
        [
            name,
            f"{seconds:,.1f} s",
            f"{num_rows / seconds:,.0f}",
            f"{small.cpu[name]:,.1f} s",
            f"{large.cpu[name]:,.1f} s",
            f"{large.cpu[name] / small.cpu[name]:.1f}",
            f"{large.peaks[name] / 2**20:,.0f} MiB",
        ]
        for name, seconds in large.seconds.items()
    ]
    say(heading("tests.bench.bench_versions", packages=("django", "psycopg", "numpy")))
    names = (f"{num_rows:,} rows", "time", "rows a second")
    names += (f"CPU at {num_rows // 4:,}", "CPU", "times", "peak memory so far")
    say(table(names, rows))


class Timings:
    """What each piece of work took on versions of so many rows."""

    def __init__(self, team: Any, num_rows: int) -> None:
        self.team, self.num_rows = team, num_rows
        self.seconds: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self.peaks: dict[str, int] = {}

    def run(self) -> None:
        version = self._version("Large")
        other = self._version("Other", of=version)
        self._time("save all rows", lambda: self._save(version, ""))
        self._time(
            "save 1 row in 5", lambda: self._save(version, "column=level&value=3")
        )
        self._time(
            "save 1 word, sorted", lambda: self._save(version, "q=what&sort=answer")
        )
        self._time("download JSONL", lambda: self._download(version, "jsonl"))
        self._time("download CSV", lambda: self._download(version, "csv"))
        self._time("split by share", lambda: self._split(version))
        self._time("difference", lambda: self._compare(version, other))
        self._time("leak check", lambda: self._look_for_leaks(other, version))

    def _time(self, name: str, work: Callable[[], None]) -> None:
        wall, cpu = time.perf_counter(), cpu_seconds()
        work()
        self.seconds[name] = time.perf_counter() - wall
        self.cpu[name] = cpu_seconds() - cpu
        self.peaks[name] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _version(self, name: str, of: DatasetVersion | None = None) -> DatasetVersion:
        from django.db import connection

        from dashboard.datasets.models import Dataset

        version = Dataset.objects.create(team=self.team, name=name).versions.create(
            number=1,
            content_sha256=name[0] * 64,
            num_rows=self.num_rows,
            mapping={"prompt": "question", "answer": "answer", "columns": ["level"]},
        )
        with connection.cursor() as cursor:
            if of is None:
                with cursor.copy(COPY.format(FIELDS)) as copy:
                    for line in lines(version.pk, self.num_rows):
                        copy.write(line)
            else:
                numbers = {"new": version.pk, "old": of.pk, "all": self.num_rows}
                cursor.execute(_OTHER, numbers | {"half": self.num_rows // 2})
            # As autovacuum does soon after an import.
            cursor.execute("VACUUM ANALYZE datasets_datasetrow")
        return version

    def _save(self, version: DatasetVersion, query: str) -> None:
        from django.http import QueryDict

        from dashboard.datasets.imports.jobs import claim_job
        from dashboard.datasets.rows.filters import RowFilterForm
        from dashboard.datasets.selections import source_of_view, start_selection
        from dashboard.datasets.work import work_with_pulse

        view = RowFilterForm.read(version, QueryDict(query))
        job, _ = start_selection(
            parent=version,
            source=source_of_view(version, view),
            name=f"Saved {query}"[:80],
            dataset=None,
            user=None,
            key=uuid4(),
        )
        claim = claim_job(job.pk, "bench")
        assert claim
        work_with_pulse(claim, is_shutting_down=lambda: False)
        job.refresh_from_db()
        assert job.version, job.problem

    def _download(self, version: DatasetVersion, suffix: str) -> None:
        from dashboard.datasets.rows.exports import WRITERS, joined

        with open(os.devnull, "wb") as nowhere:
            for piece in joined(WRITERS[suffix](version)):
                nowhere.write(piece)

    def _split(self, version: DatasetVersion) -> None:
        from dashboard.datasets.splits import make_split

        split = version.splits.create(
            rule={"by": "share", "share": 10.0, "seed": 0},
            train_name="Train",
            eval_name="Eval",
            **_asked(version.num_rows),
        )
        make_split(split.pk)
        split.refresh_from_db()
        assert split.is_done, split.problem

    def _compare(self, old: DatasetVersion, new: DatasetVersion) -> None:
        from dashboard.datasets.findings.differences import make_difference
        from dashboard.datasets.models import VersionDifference

        asked = _asked(2 * self.num_rows)
        found = VersionDifference.objects.create(old=old, new=new, **asked)
        make_difference(found.pk)

    def _look_for_leaks(self, held: DatasetVersion, trained: DatasetVersion) -> None:
        from dashboard.datasets.findings.leaks import make_leak
        from dashboard.datasets.models import VersionLeak

        asked = _asked(2 * self.num_rows)
        found = VersionLeak.objects.create(held_out=held, trained_on=trained, **asked)
        make_leak(found.pk)


def cpu_seconds() -> float:
    """Of this process and of the database's that serves it."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        status = Path(f"/proc/{cursor.fetchone()[0]}/stat").read_text()
    user, system = status.rpartition(")")[2].split()[11:13]
    served = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return time.process_time() + served


def _asked(num_wanted: int) -> dict[str, Any]:
    from django.utils import timezone

    return {"num_wanted": num_wanted, "moved_at": timezone.now()}


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
