"""The `cohort` command as a subprocess."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.environment import python_path

ROOT = Path(__file__).parents[3]
Finished = subprocess.CompletedProcess[str]


class Cohort:
    def __init__(self, url: str, token: str, folder: Path, **environment: str) -> None:
        self.url, self.token = url, token
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": python_path(),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "COHORT_URL": url,
            "COHORT_TOKEN": token,
            **environment,
        }
        self._folder = folder
        self.python: str | Path = sys.executable

    def start(self, *arguments: Any, **pipes: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.python, "-m", "cohort", *map(str, arguments)],
            env=self.environment,
            cwd=self._folder,
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes},
        )

    def __call__(self, *arguments: Any) -> Finished:
        with self.start(*arguments) as child:
            out, err = child.communicate(timeout=120)
        return subprocess.CompletedProcess(child.args, child.returncode, out, err)

    def json(self, *arguments: Any) -> list[Any]:
        """Its output with --json, one object a line."""
        done = self(*arguments, *([] if "--json" in arguments else ["--json"]))
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]
