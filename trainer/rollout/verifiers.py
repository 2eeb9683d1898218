"""Episodes that the library verifiers drives, in a process and interpreter of its own.

The policy's turns are sampled here, from token ids as of any other environment; the
process gets their text, and says what stands behind them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from trainer.config import EnvironmentConfig
from trainer.data import Row
from trainer.rewards.child import Child, NoReply, TimedOut
from trainer.rewards.rule import Message
from trainer.rewards.rules.python_function import valid_metrics
from trainer.rollout.environments import EnvironmentFailed, Reply, Said
from trainer.types import REWRITTEN, ToolCall

# Names the Python that has verifiers and the tasksets, if it is another than that of
# `make environments`.
PYTHON = "COHORT_ENVIRONMENTS_PYTHON"
_MADE = Path(__file__).resolve().parents[2] / ".venv-environments" / "bin" / "python"
_MODULE = "trainer.rollout.verifiers_process"
# Beyond the time that an environment has: the import of the library takes 7 s.
_GRACE_SECONDS = 120.0
_MAX_WORDS = 1_000  # bytes of what a process said last
_LIST_SECONDS = 60.0  # until a task asks
# Where tasksets keep what they download.
_KEPT = ("HOME", "HF_HOME", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


class Taskset:
    """An environment that drives its episodes itself, in a process of its own.

    One that died is started again, once. For one thread at a time.
    """

    is_quick = False
    tools: Sequence[dict[str, Any]] = ()  # rows have them

    def __init__(self, config: EnvironmentConfig) -> None:
        """
        Raises:
            ValueError: the library is not installed.
        """
        self._config = config
        self._python = os.environ.get(PYTHON) or str(_MADE)
        if not os.access(self._python, os.X_OK):
            raise ValueError(
                "The Python that plays tasksets of verifiers is missing: "
                f'{self._python}. Run make environments PACKAGES="…", or set {PYTHON}.'
            )
        self._child: Child | None = None
        self._has_died = False
        self._last = 0.0

    def open(self, row: Row, seed: int) -> Sequence[Message]:
        """Add nothing; a row that has no task is refused."""
        if not isinstance(row.columns.get("task"), dict):
            raise EnvironmentFailed(
                f"Row {row.index} (line {row.index + 1}) has no task in column task. "
                "Make the rows by `python -m trainer tasks`."
            )
        return ()

    def reply(self, row: Row, seed: int, said: Sequence[Said]) -> Reply:
        raise EnvironmentFailed("A taskset asks for the policy's turns.")

    def write(self, **question: Any) -> None:
        """Send a line, as the process has it."""
        self._last = time.monotonic()
        if self._child is None:
            self._words = tempfile.TemporaryFile()  # noqa: SIM115 - the process has it
            self._child = Child(
                _MODULE,
                self._config.taskset,
                json.dumps(self._config.options),
                environment={n: os.environ[n] for n in _KEPT if n in os.environ},
                interpreter=self._python,
                stderr=self._words,
            )
        with suppress(NoReply):  # reading tells
            self._child.write(question)

    def read(self, *, timeout_seconds: float) -> dict[str, Any] | None:
        """Return the next line, or nothing where it does not come in time.

        Raises:
            EnvironmentFailed: the process is gone; the next line starts another.
            ValueError: so was the one before it.
        """
        if self._child is None:
            return None
        try:
            line = self._child.read(timeout_seconds=timeout_seconds)
        except NoReply as error:
            most = self._config.trajectory_seconds + _GRACE_SECONDS
            if isinstance(error, TimedOut) and time.monotonic() < self._last + most:
                return None
            self._words.seek(max(0, self._words.seek(0, os.SEEK_END) - _MAX_WORDS))
            words = self._words.read().decode(errors="replace").strip()
            reason = f"The process of verifiers: {error}. {words}"
            self.close()
            if self._has_died:
                raise ValueError(reason) from error
            self._has_died = True
            raise EnvironmentFailed(reason) from error
        self._last = time.monotonic()
        return line

    def close(self) -> None:
        """End the process, and what it plays."""
        if self._child is not None:
            self._child.end()
            self._words.close()
            self._child = None


@lru_cache(maxsize=1)
def open_taskset(config: str) -> Taskset:
    """Return the taskset of these settings, as JSON: one for sampling and evaluation,
    as it takes long to start.
    """
    return Taskset(EnvironmentConfig.model_validate_json(config))


def turn_line(said: Sequence[Said], *, is_cut: bool) -> dict[str, Any]:
    """Return the policy's last turn as a model's server says it.

    Args:
        said: its turns so far.
        is_cut: a limit ended it, so what it calls may be half a call.
    """
    calls = [
        {
            "id": f"call{len(said) % 1_000:03}{number % 100:02}",
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": call.arguments
                if isinstance(call.arguments, str)
                else json.dumps(call.arguments),
            },
        }
        for number, call in enumerate(said[-1].calls if not is_cut else ())
    ]
    message = {"role": "assistant", "content": said[-1].content}
    reason = "length" if is_cut else "tool_calls" if calls else "stop"
    return {
        "turn": message | ({"tool_calls": calls} if calls else {}),
        "finish": reason,
    }


def reply_of(
    line: dict[str, Any], calls: Sequence[ToolCall]
) -> Reply | EnvironmentFailed:
    """Return what stands behind a turn with these calls, or the end of its episode:
    why it has no reward, if it has none.
    """
    match line.get("end"):
        case None:
            messages = line["messages"]
            results = [turn["content"] for turn in messages if turn["role"] == "tool"]
            return Reply(
                messages=tuple(messages),
                calls=tuple(
                    replace(call, result=result)
                    for call, result in zip(calls, results, strict=False)
                ),
            )
        case "done":
            return Reply(
                is_done=True,
                episode_reward=line["reward"],
                metrics=valid_metrics(line["metrics"]),
            )
        case "rewritten":
            return EnvironmentFailed(REWRITTEN)
        case end:
            return EnvironmentFailed(line["error"], is_timeout=end == "timeout")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write the tasks of a taskset, which `make environments` installs, as JSON "
        "lines for data.rows: what each asks first, and its data in column task."
    )
    parser.add_argument("taskset", help="name of the taskset")
    parser.add_argument(
        "--options", default="{}", metavar="JSON", help="settings of the taskset"
    )
    parser.add_argument("--limit", type=int, default=1_000, help="most tasks")
    parser.add_argument(
        "--schema", action="store_true", help="write the JSON schema of its settings"
    )


def main(options: argparse.Namespace) -> int:
    limit = 0 if options.schema else options.limit
    try:
        config = EnvironmentConfig(
            kind="verifiers",
            taskset=options.taskset,
            options=json.loads(options.options),
        )
        with closing(Taskset(config)) as taskset:
            for line in list_tasks(taskset, limit):
                if options.schema or "prompt" in line:  # the schema is the last line
                    sys.stdout.write(json.dumps(line) + "\n")
                    sys.stdout.flush()  # someone waits for the first rows
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def list_tasks(taskset: Taskset, limit: int) -> Iterator[dict[str, Any]]:
    """Yield the first tasks as rows of a dataset, and last the JSON schema of the
    taskset's settings.

    Raises:
        EnvironmentFailed: a task asks nothing, or the process is gone.
    """
    taskset.write(limit=limit, seconds=_LIST_SECONDS)
    while "schema" not in (line := taskset.read(timeout_seconds=1.0) or {}):
        if "task" in line and "messages" not in line:
            why = line.get("error", "it ends before the policy's first turn.")
            raise EnvironmentFailed(f"A task asks nothing: {why}")
        if "task" in line:
            columns = {name: line[name] for name in ("task", "tools") if line[name]}
            yield {"prompt": line["messages"], "answer": None, "columns": columns}
    yield line["schema"]
