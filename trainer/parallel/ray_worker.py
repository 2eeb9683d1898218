"""What a run starts on the nodes of a Ray cluster: a relay, and one worker a rank.

The driver sends this module by value, so it imports nothing else of Cohort: what a node
has installed is compared before it is used.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import ray
from ray.train import get_context
from ray.train.backend import Backend, BackendConfig

PULSE_FILE = "pulse"
STOP, STACKS, KILL = "stop", "stacks", "kill"
_SIGNALS = {STOP: signal.SIGTERM, STACKS: signal.SIGUSR1}
_POLL_SECONDS = 0.1
_ORDER_SECONDS = 1.0  # that a question for orders may take; the sign of life of a rank
_NEWS_SECONDS = 0.25
_LOG_CAP_BYTES = 32 * 2**20
_LOG_KEPT_BYTES = 8 * 2**20


class Relay:
    """An actor beside the driver: orders go one way, facts and exit codes the other."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._facts: dict[int, dict[str, Any]] = {}
        self._start: dict[str, Any] | None = None
        self._orders: list[str] = []
        self._seen: dict[int, float] = {}
        self._ends: dict[int, int] = {}

    async def join(self, rank: int, facts: dict[str, Any]) -> None:
        """Once a rank: Ray Train shall not start any of them again."""
        if rank in self._facts:
            raise RuntimeError(f"rank {rank} has joined before")
        self._facts[rank] = facts
        await self._tell(rank)

    async def start(self, start: dict[str, Any]) -> None:
        """Where the ranks meet; empty: they end."""
        self._start = start
        await self._tell()

    async def wait_for_start(self, rank: int) -> dict[str, Any] | None:
        """None: not yet."""
        await self._tell(rank)
        await self._wait(lambda: self._start is not None, _ORDER_SECONDS)
        return self._start

    async def order(self, what: str) -> None:
        self._orders.append(what)
        await self._tell()

    async def orders(self, rank: int, num_known: int) -> list[str]:
        await self._tell(rank)
        await self._wait(lambda: len(self._orders) > num_known, _ORDER_SECONDS)
        return self._orders[num_known:]

    async def end(self, rank: int, code: int) -> None:
        self._ends[rank] = code
        await self._tell(rank)

    async def news(self, num_joined: int, num_ended: int) -> dict[str, Any]:
        """At once where it is more than what is known already, else after a moment."""
        await self._wait(
            lambda: len(self._facts) > num_joined or len(self._ends) > num_ended,
            _NEWS_SECONDS,
        )
        now = time.monotonic()
        return {
            "facts": dict(self._facts),
            "ends": dict(self._ends),
            "silent": {rank: now - seen for rank, seen in self._seen.items()},
        }

    async def _tell(self, rank: int | None = None) -> None:
        if rank is not None:
            self._seen[rank] = time.monotonic()
        async with self._changed:
            self._changed.notify_all()

    async def _wait(self, is_due: Callable[[], bool], seconds: float) -> None:
        async with self._changed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(is_due), seconds)


class _SharesGpus(Backend):  # type: ignore[misc]  # untyped
    share_cuda_visible_devices = True  # each rank takes the GPU of its local rank


@dataclass
class Processes(BackendConfig):  # type: ignore[misc]  # untyped
    """Ranks that meet by themselves: torch is not loaded beside the trainer."""

    @property
    def backend_cls(self) -> type[Backend]:
        return _SharesGpus


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the driver asks of each worker."""

    relay: Any
    root: str  # the folder that has the driver's `trainer`
    arguments: list[str]  # of `python -m trainer`
    out: str
    token: str  # of this start: its probe has it
    paths: list[str] = field(default_factory=list)  # which every node must have
    environment: Mapping[str, str] = field(default_factory=dict)


def work(plan: Plan) -> None:
    """One rank: `python -m trainer run` as a child process, until its end."""
    context = get_context()
    rank = context.get_world_rank()
    # A loop asks, in place of one long wait: it is the sign of life of this rank.
    ray.get(plan.relay.join.remote(rank, look_around(plan, rank)))
    start = None
    while start is None:
        start = ray.get(plan.relay.wait_for_start.remote(rank))
    if not start:
        return
    environment = {
        **plan.environment,
        **start,
        "RANK": str(rank),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
    }
    with _Child(plan, rank, environment) as child:
        code = _follow(child, plan.relay, rank)
    ray.get(plan.relay.end.remote(rank, code))


def _follow(child: _Child, relay: Any, rank: int) -> int:
    num_obeyed = 0
    asked = relay.orders.remote(rank, num_obeyed)
    while (code := child.poll()) is None:
        answered, _ = ray.wait([asked], timeout=_POLL_SECONDS)
        if answered:
            # Where the relay is gone so is the driver: this raises and ends the child.
            for order in ray.get(asked):
                num_obeyed += 1
                child.obey(order)
            child.cap_log()
            asked = relay.orders.remote(rank, num_obeyed)
    return code


class _Child:
    """The trainer's process in a session of its own; it ends with this process."""

    def __init__(self, plan: Plan, rank: int, environment: Mapping[str, str]) -> None:
        read_end, self._write_end = os.pipe()
        self._log = Path(plan.out, f"rank-{rank}.log")
        local_size = int(environment["LOCAL_WORLD_SIZE"])
        try:
            with self._log.open("ab") as output:
                self._child = subprocess.Popen(
                    [sys.executable, "-m", "trainer", *plan.arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=find_root(plan.root),
                    env={
                        **os.environ,
                        **_network(),
                        # Ray's own number is that of the CPUs asked for, which is 1.
                        "OMP_NUM_THREADS": str(max(1, _num_cores() // local_size)),
                        **environment,
                        "COHORT_PARENT_PIPE": str(read_end),
                        "PYTHONUNBUFFERED": "1",
                    },
                    pass_fds=(read_end,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._write_end)
            raise
        finally:
            os.close(read_end)

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *raised: object) -> None:
        self._kill()
        self._child.wait()
        os.close(self._write_end)

    def poll(self) -> int | None:
        """Its exit code, once nothing that it started is left."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, self._child.pid, options) is None:
            return None
        self._kill()  # unreaped, its process group is still its own
        return self._child.wait()

    def obey(self, order: str) -> None:
        if order == KILL:
            self._kill()
        elif self._child.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._child.pid, _SIGNALS[order])
                if order == STACKS:
                    os.killpg(self._child.pid, signal.SIGCONT)

    def cap_log(self) -> None:
        """Keep its last part; the child appends, so that each write lands whole."""
        with suppress(OSError):
            if self._log.stat().st_size <= _LOG_CAP_BYTES:
                return
            with self._log.open("r+b") as file:
                cut = file.seek(-_LOG_KEPT_BYTES, os.SEEK_END)
                kept = file.read()
                file.truncate(0)
            with self._log.open("ab") as file:
                file.write(b"[%d bytes left out]\n" % cut + kept)

    def _kill(self) -> None:
        if self._child.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)


def look_around(plan: Plan, rank: int) -> dict[str, Any]:
    """What the driver compares before a rank starts, and where rank 0 can be met."""
    root = find_root(plan.root)
    address = ray.util.get_node_ip_address()
    with socket.socket() as taken:
        taken.bind((address, 0))
        port = taken.getsockname()[1]
    return {
        "node": address,
        "host": socket.gethostname(),
        "port": port,
        "versions": versions_of(root),
        "sees_folder": _sees_folder(Path(plan.out), plan.token, rank),
        "lacks": [path for path in plan.paths if not os.path.exists(path)],
    }


def find_root(root: str) -> str:
    """The node's own Cohort: the first of PYTHONPATH, else where the driver has it."""
    folders = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), root]
    found = (each for each in folders if Path(each, "trainer/__main__.py").is_file())
    return next(found, "")


def versions_of(root: str) -> dict[str, str]:
    """Of Cohort there are no numbers: a digest of its engine stands for one."""
    return {
        "Cohort": _digest(Path(root, "trainer")) if root else "none",
        "torch": _version("torch"),
        "Ray": ray.__version__,
        "Python": platform.python_version(),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package).partition("+")[0]  # CPU's or CUDA's build
    except metadata.PackageNotFoundError:
        return "none"


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".toml", ".json"):
            digest.update(f"{path.relative_to(folder)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def probe_of(out: Path, token: str) -> Path:
    return out / f".probe-{token}"


def _sees_folder(out: Path, token: str, rank: int) -> bool:
    """Whether the run's folder is here the driver's, and can be written."""
    mine = out / f".probe-{token}-{rank}"
    try:
        if probe_of(out, token).read_text("ascii") != token:
            return False
        mine.touch(exist_ok=False)
        mine.unlink()
    except OSError:
        return False
    return True


def _network() -> dict[str, str]:
    """gloo takes the address of the host's name, which may lead nowhere."""
    name = _interface_of(ray.util.get_node_ip_address())
    if not name or "GLOO_SOCKET_IFNAME" in os.environ:
        return {}
    return {"GLOO_SOCKET_IFNAME": name}


def _interface_of(address: str) -> str:
    if address.startswith("127."):
        return "lo"
    try:
        import psutil  # noqa: PLC0415 - no node needs it
    except ImportError:
        return ""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return str(name)
    return ""


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))
