"""Commands to the process that forks trainers: trainer_forks.py."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults.tiny import ROOT


class Forks:
    """Runs trainers, each in a forked process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(
        self,
        folder: Path,
        *options: str,
        mishap: list[Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> int:
        """Train folder/run.json into folder/out; returns the exit code.

        `env`: extra environment variables.
        """
        argv = ["run", str(folder / "run.json"), "--out", str(folder / "out")]
        log = folder / "trainer.log"
        order: dict[str, Any] = {"argv": [*argv, *options], "log": str(log)}
        order |= {"mishap": mishap, "env": dict(env or {})}
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "The process that forks trainers has ended."
        return int(answer)


@contextmanager
def forks() -> Iterator[Forks]:
    script = Path(__file__).with_name("trainer_forks.py")
    process = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield Forks(process)
        assert process.stdin
        process.stdin.close()


def write_run(folder: Path, tree: dict[str, Any]) -> Path:
    """Its configuration and rows."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = ({"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(8))
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rows.jsonl").write_text(text)
    (folder / "run.json").write_text(json.dumps(tree))
    return folder
