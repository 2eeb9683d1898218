"""The trainer as a child process that cannot outlive its supervisor, and its files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Self

from django.conf import settings

from dashboard.completions.prompts import pass_rate_lines
from dashboard.datasets.limits import RESERVED_BYTES
from dashboard.datasets.row_storage import write_rows, write_some_rows
from dashboard.observability.logging import trainer_variables as log_facts
from dashboard.project.environment import ROOT, SECRETS, hub_token_path
from dashboard.runs.changes import first_config
from dashboard.runs.models import Run, SettingChange
from dashboard.runs.queries import (
    RunDirectory,
    eval_rows,
    find_pass_rates,
    run_directory,
)
from dashboard.supervision.workers import trainer_variables
from trainer.config import Change, ChangeList
from trainer.events import Event, SettingsChanged

# The trainer has no business with our servers, nor a model's code with our keys, by
# value or by file. OpenTelemetry reads its headers itself, which may contain a key.
TELEMETRY = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
WITHHELD = frozenset(
    f"{name}{end}" for name in (*SECRETS, *TELEMETRY) for end in ("", "_FILE")
)
# Only the trainer of a run on a cluster has these. A storage's URL can hold a password.
RAY_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
CLUSTER_VARIABLES = frozenset(
    f"{name}{end}"
    for name in ("COHORT_RAY_ADDRESS", "COHORT_RAY_STORAGE", *RAY_TOKENS)
    for end in ("", "_FILE")
)
LOG_CAP_BYTES = 32 * 1024 * 1024
LOG_KEPT_BYTES = 8 * 1024 * 1024
# When memory runs out the kernel must kill the trainer, not its supervisor.
OOM_SCORE_ADJ = 500


def trainer_command(
    directory: RunDirectory, *, attempt: int, resume_from: Path | None
) -> list[str]:
    resume = ["--resume-from", str(resume_from)] if resume_from else []
    return [
        sys.executable,
        "-m",
        "trainer",
        "run",
        str(directory.config),
        "--out",
        str(directory.attempt(attempt).path),
        "--attempt",
        str(attempt),
        "--checkpoints",
        str(directory.checkpoints),
        "--attempts",
        str(directory.attempts),
        *resume,
    ]


class TrainerProcess:
    """The trainer in its own session, so that its children can be killed with it.

    It has the read end of a pipe whose write end only this process has: when this
    process dies in any way, the trainer reads the end of the file and exits.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        read_end, self._write_end = os.pipe()
        # The trainer's log as JSON goes to our own error output, too.
        log_ends = [os.dup(2)] if settings.LOG_FORMAT == "json" else []
        try:
            with log.open("ab") as output:
                self._child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=ROOT,
                    env={
                        **_environment(os.environ, read_end, log_ends),
                        **variables,
                    },
                    pass_fds=(read_end, *log_ends),
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._write_end)
            raise
        finally:
            for end in (read_end, *log_ends):
                os.close(end)
        with suppress(OSError):  # not Linux, or already exited
            Path(f"/proc/{self.pid}/oom_score_adj").write_text(
                str(OOM_SCORE_ADJ), "ascii"
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.kill()
        self.reap()
        os.close(self._write_end)

    def has_exited(self) -> bool:
        """Leaves it unreaped: until then its process group cannot be another's."""
        if self._child.returncode is not None:
            return True
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, options) is not None

    def ask_to_stop(self) -> None:
        if not self.has_exited():
            os.kill(self.pid, signal.SIGTERM)

    def ask_where_it_is(self) -> None:
        """Dump the stacks of its threads to its log;

        a stopped process is continued first.
        """
        if not self.has_exited():
            os.kill(self.pid, signal.SIGUSR1)
            os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the trainer and everything it started."""
        if self._child.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Wait for the exit, and return the exit status, negative for a signal."""
        if self._child.returncode is None and self.has_exited():
            self.kill()  # orphaned children
        return self._child.wait()

    def cap_log(self) -> int:
        """Keep the log's last part when it has grown too large.

        Returns how many bytes nearer to its beginning the lines that stay lie then.
        """
        if self.log.stat().st_size <= LOG_CAP_BYTES:
            return 0
        with self.log.open("r+b") as file:
            cut = file.seek(-LOG_KEPT_BYTES, os.SEEK_END)
            rest = file.read()
            file.truncate(0)
        # The child appends as well, so each write lands at the end, whole.
        note = b"[%d bytes left out]\n" % cut
        with self.log.open("ab") as file:
            file.write(note + rest)
        return cut - len(note)


def withhold(base: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without our keys."""
    return {name: value for name, value in base.items() if name not in WITHHELD}


def _environment(
    base: Mapping[str, str], parent_pipe: int, log_ends: Sequence[int]
) -> dict[str, str]:
    return {
        **{n: v for n, v in withhold(base).items() if n not in CLUSTER_VARIABLES},
        **trainer_variables(),
        **hub_token_path(base),
        **log_facts(),
        **({"COHORT_LOG_FD": str(log_ends[0])} if log_ends else {}),
        **(
            {"COHORT_RESERVED_BYTES": str(RESERVED_BYTES)}
            if settings.DATABASE_IS_EMBEDDED
            else {}
        ),
        "COHORT_PARENT_PIPE": str(parent_pipe),
        "PYTHONUNBUFFERED": "1",
    }


# The files that a trainer reads.


def write_snapshot(
    run: Run, *, on_progress: Callable[[], None] = lambda: None
) -> RunDirectory:
    """Write all rows and run.json; run.json comes last and means complete.

    The rows are written once, run.json again where a resume has changed it.
    """
    directory = run_directory(run.id)
    has_changes = run.changes.exists()
    first = first_config(run).model_dump(mode="json") if has_changes else run.config
    text = json.dumps(
        {**first, "data": {**first["data"], "rows": directory.rows.name}},
        indent=2,
        allow_nan=False,
    )
    if not directory.config.exists():
        directory.checkpoints.mkdir(parents=True, exist_ok=True)
        assert run.dataset_version, "launched"
        write_rows(run.dataset_version, directory.rows, on_progress=on_progress)
        for evaluation_set in run.evaluation_sets.select_related(
            "dataset_version__dataset"
        ):
            write_some_rows(
                evaluation_set.dataset_version,
                directory.path / eval_rows(evaluation_set.name),
                max_rows=evaluation_set.num_rows,
                on_progress=on_progress,
            )
        name = run.config.get("curriculum", {}).get("start_from") or ""
        if source := find_pass_rates(name, team_id=run.team_id):
            write_durably(directory.path / name, "".join(pass_rate_lines(source)))
    elif directory.config.read_text(encoding="utf-8") == text:
        return directory
    write_durably(directory.config, text)
    return directory


def write_durably(path: Path, text: str) -> None:
    draft = path.with_name(path.name + ".tmp")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_changes(run: Run, path: Path) -> None:
    """Write the changed settings that the trainer of one attempt reads."""
    listed = [
        Change(number=number, after_step=after_step, settings=after)
        for number, after_step, after in run.changes.order_by("number").values_list(
            "number", "applied_step", "after"
        )
    ]
    if not listed:
        return
    text = ChangeList(changes=tuple(listed)).model_dump_json(indent=2)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, text)


def record_changes(run_id: int, events: Iterable[Event]) -> None:
    """Record the step at which each change took effect; later attempts apply it at the
    same step.
    """
    for event in events:
        if isinstance(event, SettingsChanged):
            SettingChange.objects.filter(
                run_id=run_id, applied_step=None, number=event.number
            ).update(applied_step=event.step)
