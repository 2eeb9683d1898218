"""What containers and units start really runs, is seen to be well, and ends in time.

The commands are those of the files; only what a container has of its own is replaced:
its Python, its port, its /tmp and its name.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dashboard.project.environment import ROOT
from tests.contracts.production import (
    SERVICES,
    container_command,
    grace_seconds,
    health_command,
)
from tests.faults.workers import wait_for
from tests.fixtures_app import free_port

pytestmark = pytest.mark.slow


class Container:
    """The process of a service, and its health check."""

    def __init__(self, service: str, *, environment: dict[str, str], tmp: Path) -> None:
        self.port = free_port()
        self.tmp = tmp
        self.environment = environment
        self.health = [self._here(part) for part in health_command(service)]
        self.log = tmp / "log"
        command = [self._here(part) for part in container_command(service)]
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log
            )

    def _here(self, part: str) -> str:
        if part == "8000":
            return str(self.port)
        part = part.replace(":8000/", f":{self.port}/").replace("0.0.0.0", "127.0.0.1")  # noqa: S104
        return part.replace("/tmp", str(self.tmp))

    def is_well(self) -> bool:
        assert self.child.poll() is None, self.log.read_text()[-2_000:]
        done = subprocess.run(
            self.health,
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def stop(self, seconds: float) -> int:
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(timeout=seconds)


@pytest.fixture
def start(app_environment, tmp_path) -> Iterator[Callable[[str], Container]]:
    """With a PATH on which a container's names are found."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    started: list[Container] = []

    def start(service: str) -> Container:
        tmp = tmp_path / service
        tmp.mkdir()
        environment = {**app_environment, "PATH": path, "TMPDIR": str(tmp)}
        started.append(Container(service, environment=environment, tmp=tmp))
        return started[-1]

    yield start
    for container in started:
        container.child.kill()
        container.child.wait()


def test_all_of_it_runs_is_well_and_ends_in_time(start):
    if shutil.which("hostname") is None:
        pytest.skip("a worker's check asks `hostname`, which is not here")
    containers = {service: start(service) for service in SERVICES}

    for service, container in containers.items():
        wait_for(container.is_well, what=f"{service} is well")
    web = containers["web"]
    with urllib.request.urlopen(f"http://127.0.0.1:{web.port}/readyz") as answer:
        assert answer.status == 200
        assert json.load(answer)

    for service, container in containers.items():
        assert container.stop(grace_seconds(service)) in (0, -signal.SIGTERM), service
