"""A PostgreSQL of a test's own, to be struck, and what it holds of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
from django.conf import settings

from dashboard.local.postgres import EmbeddedPostgres
from tests.faults.tiny import ROOT, Groups, Series, groups, read_log, series, untimed


def environment(server: EmbeddedPostgres, folder: Path) -> dict[str, str]:
    """Of processes that are to use it, a copy of the template."""
    return {
        **os.environ,
        "DATABASE_URL": address(server),
        "REDIS_URL": settings.REDIS_URL,
        "COHORT_DATA": str(folder / "data"),
        "DJANGO_SETTINGS_MODULE": "dashboard.settings",
    }


def address(server: EmbeddedPostgres) -> str:
    return f"postgresql://cohort@/cohort?host={server.socket_folder}"


def ask(server: EmbeddedPostgres, sql: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(address(server)) as connection:
        return connection.execute(sql, values).fetchall()


class StoredRun:
    """One that trains until it is stopped."""

    def __init__(
        self, server: EmbeddedPostgres, env: dict[str, str], model: Path
    ) -> None:
        self._server = server
        command = [sys.executable, "tests/faults/launch_run.py", str(model), "1000000"]
        done = subprocess.run(
            command, cwd=ROOT, env=env, check=True, capture_output=True, text=True
        )
        self.id = int(done.stdout)
        epoch = Path(env["COHORT_DATA"]) / "runs" / str(self.id) / "epochs" / "1"
        self.log = epoch / "events.jsonl"
        self.journal = epoch / "supervisor.log"

    def _ask(self, sql: str) -> list[tuple[Any, ...]]:
        return ask(self._server, sql, self.id)

    def place(self) -> tuple[str, int, int]:
        """State, last step and epoch."""
        sql = "SELECT state, last_step, epoch FROM runs_run WHERE id = %s"
        ((state, last_step, epoch),) = self._ask(sql)
        assert state != "failed"
        return state, last_step, epoch

    def last_step_told(self) -> int:
        """By its trainer, whether it is stored or not."""
        whole, _, _ = self.log.read_bytes().rpartition(b"\n")
        return max(series([json.loads(line) for line in whole.split(b"\n")]))

    def request_stop(self) -> None:
        """As the web process does, which is not here."""
        stop = "UPDATE runs_run SET state = 'stopping' WHERE id = %s RETURNING id"
        assert self._ask(stop)

    def assert_as_told(self) -> None:
        """In one life, each step, group and line of its log, once."""
        told = read_log(self.log)
        assert self.place() == ("stopped", max(series(told)), 1)
        assert self._series() == series(told)
        assert self._groups() == groups(told)
        lines = "SELECT line FROM runs_runevent WHERE run_id = %s ORDER BY seq"
        assert [line for (line,) in self._ask(lines)] == [one["line"] for one in told]

    def _series(self) -> Series:
        ((names,),) = self._ask("SELECT metric_names FROM runs_run WHERE id = %s")
        rows = self._ask("SELECT step, values FROM runs_step WHERE run_id = %s")
        stored = {
            step: untimed(dict(zip(names, values, strict=False)))
            for step, values in rows
        }
        assert len(rows) == len(stored)
        return stored

    def _groups(self) -> Groups:
        rows = self._ask(
            "SELECT step, prompt_index, texts, rewards, advantages"
            "  FROM samples_group g JOIN samples_groupcompletions ON group_id = g.id"
            " WHERE run_id = %s"
        )
        stored = {
            (step, prompt): list(zip(*columns, strict=True))
            for step, prompt, *columns in rows
        }
        assert len(rows) == len(stored)
        return stored
