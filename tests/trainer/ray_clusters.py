"""A Ray cluster of two nodes on this machine, one CPU each, in a process of its own."""

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.environment import ROOT, child_environment
from trainer.stopping import die_with_parent

# A node with another address than 127.0.0.1 listens on all of the machine's, so who has
# no token is refused. Ray Train tells nodes apart by their addresses.
HEAD, SECOND = "127.0.0.2", "127.0.0.3"
# Of a node, or one for the cluster.
OF_NODES = [
    *("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent"),
    "ray::_AutoscalingCoordinatorActor",
]


class TwoNodes:
    """A driver of this machine is on the first one."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.variables = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "RAY_TMPDIR": str(folder),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.trainer.ray_clusters"],
            cwd=ROOT,
            env=child_environment() | self.variables | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.address: str = self._ask("address")

    @property
    def environment(self) -> dict[str, str]:
        return {**self.variables, "COHORT_RAY_ADDRESS": self.address}

    def start(
        self, config: Path, out: Path, *more: object, **options: Any
    ) -> subprocess.Popen[str]:
        from tests.trainer.tiny import start_trainer

        arguments = ("run", config, "--out", out, *more)
        return start_trainer(*arguments, env=self.environment, **options)

    def kill_second(self) -> None:
        """As kill -9 of its raylet and of all that this started."""
        self._ask("kill")

    def add_second(self) -> None:
        self._ask("add")

    def ranks(self) -> list[psutil.Process]:
        """The trainers on all nodes."""
        return [
            process
            for process, command in self._processes()
            if command[1:4] == ["-m", "trainer", "run"]
        ]

    def workers(self) -> list[str]:
        """Processes on all nodes that Ray has started for a driver."""
        names = [command[0].strip() for _, command in self._processes() if command]
        return [n for n in names if n.startswith("ray::") and n not in OF_NODES]

    def _processes(self) -> Iterator[tuple[psutil.Process, list[str]]]:
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                yield process, process.cmdline()

    def close(self) -> None:
        processes = psutil.Process(self._process.pid).children(recursive=True)
        assert self._process.stdin
        self._process.stdin.close()
        assert self._process.stdout
        self._process.wait(60)
        self._process.stdout.close()
        _, left = psutil.wait_procs(processes, timeout=20)
        for process in left:
            process.kill()

    def _ask(self, *command: object) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        while line := self._process.stdout.readline():
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise AssertionError("the cluster's process has ended")


@contextmanager
def two_nodes(folder: Path, **variables: str) -> Iterator[TwoNodes]:
    """`variables` are of the nodes alone."""
    nodes = TwoNodes(folder, **variables)
    try:
        yield nodes
    finally:
        nodes.close()


def main() -> None:
    from ray.cluster_utils import Cluster

    die_with_parent()  # and the nodes with us
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1,
            "node_ip_address": HEAD,
            "include_dashboard": False,
        },
    )
    second = cluster.add_node(num_cpus=1, node_ip_address=SECOND)
    for line in sys.stdin:
        answer: object = None
        match json.loads(line):
            case ["address"]:
                answer = cluster.address
            case ["kill"]:
                cluster.remove_node(second, allow_graceful=False)
            case ["add"]:
                second = cluster.add_node(num_cpus=1, node_ip_address=SECOND)
        sys.stdout.write(f"answer {json.dumps(answer)}\n")
        sys.stdout.flush()
    cluster.shutdown()


if __name__ == "__main__":
    main()
