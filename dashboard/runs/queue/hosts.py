"""What a run needs from a worker, and what the live workers have.

Workers belong to a higher layer, so their module is imported by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from django.utils.module_loading import import_string

from dashboard.accounts.models import Team
from trainer.config import PackageNeed

# COHORT_WORKER_CLASS: the runs that a worker takes.
CLASSES = {
    "any": "any run",
    "cpu": "runs that need no GPU",
    "gpu": "runs on one GPU",
    "gpus": "runs on several GPUs",
}
SHOWN_HOSTS = 3  # of those that lack something
START = "celery --app dashboard.celery worker --queues training --concurrency 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The processes of a run on a cluster."""

    num_nodes: int
    per_node: int
    device: str  # model.device

    @property
    def number(self) -> int:
        return self.num_nodes * self.per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The settings that decide where a run can train.

    Memory is not one of them: the estimate assumes full lengths, so a run that seems
    too large may well fit.
    """

    device: str = "auto"  # auto | cpu | cuda
    num_gpus: int = 1  # where it trains on GPUs
    ranks: Ranks | None = None  # on a cluster: its worker only follows it

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Runs of an older version may lack parts."""
        rollout = config.get("rollout") or {}
        num_engine = (
            rollout.get("tensor_parallel_size") or 1
            if rollout.get("engine") == "vllm"
            else 1
        )
        distributed = config.get("distributed") or {}
        device = (config.get("model") or {}).get("device") or "auto"
        num_processes = distributed.get("num_processes") or 1
        if distributed.get("where") == "ray":
            return cls(
                device="cpu",
                ranks=Ranks(
                    num_nodes=distributed.get("num_nodes") or 1,
                    per_node=num_processes,
                    device=device,
                ),
            )
        return cls(
            device=device,
            num_gpus=max(num_processes, num_engine),
        )

    def __str__(self) -> str:
        if self.ranks is not None:
            return f"{self.ranks.number:,} ranks on the Ray cluster"
        gpus = "a GPU" if self.num_gpus == 1 else f"{self.num_gpus} GPUs"
        if self.device == "cpu" or (self.device == "auto" and self.num_gpus == 1):
            return "any machine"
        return gpus if self.device == "cuda" else f"{gpus}, or a machine without any"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A training worker, as far as taking runs goes."""

    name: str
    num_slots: int = 1
    num_gpus: int = 0
    takes: str = "any"  # of CLASSES
    leaves: frozenset[int] = frozenset()  # runs whose checkpoint it cannot read
    packages: frozenset[str] | None = None  # optional ones; None: not reported

    def has(self, needs: Needs) -> bool:
        if needs.device == "cpu" or (needs.device == "auto" and not self.num_gpus):
            return True
        return self.num_gpus >= needs.num_gpus

    def may_take(self, needs: Needs) -> bool:
        num_used = needs.num_gpus if self.num_gpus and needs.device != "cpu" else 0
        of_class = {"cpu": num_used == 0, "gpu": num_used == 1, "gpus": num_used > 1}
        return self.has(needs) and of_class.get(self.takes, True)


def known_hosts() -> list[Host]:
    """List the live workers that are not drained; one query."""
    hosts: list[Host] = import_string("dashboard.supervision.worker_hosts.list_hosts")()
    return hosts


def describe_lack(
    needs: Needs, hosts: Sequence[Host], *, or_else: str = "clone the run with"
) -> str:
    """Say why no live worker takes such a run, and what to do; "" if one does."""
    if not hosts:
        return (
            "No worker accepts new runs. Start one on the server with “make run” or on "
            f"another machine with “{START}”, or undrain one."
        )
    if any(host.may_take(needs) for host in hosts):
        return ""
    able = [host for host in hosts if host.has(needs)]
    if able:
        kinds = sorted({f"{host.name}: {CLASSES[host.takes]}" for host in able})
        return (
            "The workers that could train it accept only other runs "
            f"({'; '.join(kinds)}). Start one with another COHORT_WORKER_CLASS."
        )
    return f"It needs {needs}; {_largest(hosts)}. {_remedy(needs, or_else)}"


def describe_missing(
    packages: Sequence[PackageNeed], needs: Needs, hosts: Sequence[Host]
) -> list[str]:
    """Write a message for each package that a suitable worker lacks."""
    takers = [h for h in hosts if h.may_take(needs) and h.packages is not None]
    sentences = []
    for need in packages:
        lacking = [h.name for h in takers if need.package not in (h.packages or ())]
        if lacking:
            shown = ", ".join(lacking[:SHOWN_HOSTS])
            rest = len(lacking) - SHOWN_HOSTS
            others = f" and {rest} more" if rest > 0 else ""
            sentences.append(
                f"{need}, which is not installed on {shown}{others}, so the run would "
                f"fail there: {need.remedy}."
            )
    return sentences


def _largest(hosts: Sequence[Host]) -> str:
    largest = max(host.num_gpus for host in hosts)
    if not largest:
        return "no worker has one" if len(hosts) > 1 else "the worker has none"
    return f"the largest worker has {largest}"


def _remedy(needs: Needs, or_else: str) -> str:
    gpus = "a GPU" if needs.num_gpus == 1 else f"{needs.num_gpus} GPUs"
    start = f"Start one on a machine with {gpus}: “{START}”"
    if needs.num_gpus > 1:
        return f"{start}. Or {or_else} fewer GPUs."
    return f"{start}. Or {or_else} device “auto”."


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A device that a worker reported."""

    name: str  # "NVIDIA L4", or "CPU of worker-1"
    memory_bytes: int
    is_gpu: bool


def known_devices() -> list[Device]:
    """Devices of the live workers, largest first; one query."""
    devices: list[Device] = import_string(
        "dashboard.supervision.workers.list_devices"
    )()
    # Each kind of GPU is listed once.
    return sorted(dict.fromkeys(devices), key=lambda device: -device.memory_bytes)


# Ray clusters.

# Memory of GPUs by Ray's names for them, which do not tell it (accelerator_type). Of a
# kind with several sizes the least.
GPU_GIB = {
    "V100": 16,
    "P100": 16,
    "T4": 16,
    "P4": 8,
    "K80": 12,
    "A10G": 24,
    "L4": 24,
    "L40S": 48,
    "A100": 40,
    "A100-40G": 40,
    "A100-80G": 80,
    "H100": 80,
    "H200": 141,
    "H20": 96,
    "B200": 180,
    "B300": 288,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterNode:
    name: str
    gpu_kind: str = ""  # as Ray names it: H100
    num_gpus: int = 0
    gpus_free: float = 0
    cpus: float = 0
    cpus_free: float = 0
    memory_bytes: int = 0
    is_alive: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """The resources of a team's cluster when a worker last read it."""

    address: str
    problem: str = ""  # why it was not read: a sentence
    ray_version: str = ""
    nodes: tuple[ClusterNode, ...] = ()  # that are alive first
    read_at: datetime | None = None
    worker: str = ""  # that read it

    @property
    def alive(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.is_alive]

    @property
    def num_gpus(self) -> int:
        return sum(node.num_gpus for node in self.alive)

    @property
    def gpus_free(self) -> int:
        """Whole ones; a rank takes one."""
        return sum(int(node.gpus_free) for node in self.alive)

    @property
    def kinds(self) -> list[tuple[str, int, int]]:
        """Kind of GPU, how many are free, and how many there are."""
        names = dict.fromkeys(node.gpu_kind for node in self.alive if node.num_gpus)
        return [
            (
                name or "GPU of unknown kind",
                sum(int(n.gpus_free) for n in self.alive if n.gpu_kind == name),
                sum(n.num_gpus for n in self.alive if n.gpu_kind == name),
            )
            for name in names
        ]

    @property
    def devices(self) -> list[Device]:
        """A GPU of each kind whose memory is known, and a node's memory; largest
        first."""
        gpus = [
            Device(
                name=f"{name} of the cluster",
                memory_bytes=GPU_GIB[name] * 2**30,
                is_gpu=True,
            )
            for name, _, _ in self.kinds
            if name in GPU_GIB
        ]
        node = max((node.memory_bytes for node in self.alive), default=0)
        cpu = Device(name="a node of the cluster", memory_bytes=node, is_gpu=False)
        gpus.sort(key=lambda device: -device.memory_bytes)
        return [*gpus, *([cpu] if self.alive else [])]

    def room(self, ranks: Ranks) -> Room | None:
        """Measure its place for a run; None: its nodes are not known."""
        if self.problem or not self.nodes:
            return None
        uses_gpus = ranks.device == "cuda" or (
            ranks.device == "auto" and self.num_gpus > 0
        )
        free = [int(n.gpus_free if uses_gpus else n.cpus_free) for n in self.alive]
        has = [int(n.num_gpus if uses_gpus else n.cpus) for n in self.alive]
        return Room(
            address=self.address,
            unit="GPU" if uses_gpus else "CPU",
            num_wanted=ranks.number,
            num_free=sum(free),
            num_all=sum(has),
            num_nodes=len(has),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """The place on a cluster for a run: a rank takes a GPU, or a CPU."""

    address: str
    unit: str
    num_wanted: int
    num_free: int
    num_all: int
    num_nodes: int

    @property
    def is_free(self) -> bool:
        return self.num_wanted <= self.num_free

    @property
    def is_possible(self) -> bool:
        return self.num_wanted <= self.num_all

    @property
    def sentence(self) -> str:
        """8 of 16 GPUs are free on 2 nodes; the run needs 12 and will wait."""
        units = f"{self.num_all:,} {self.unit}{_s(self.num_all)}"
        there = f"{self.num_free:,} of {units} free on {self.num_nodes} node"
        there += _s(self.num_nodes)
        if self.is_free:
            return f"{there}; the run takes {self.num_wanted:,}."
        if self.is_possible:
            return f"{there}; the run needs {self.num_wanted:,} and will wait."
        return f"{there}; the run needs {self.num_wanted:,}, more than there are."


def _s(number: int) -> str:
    return "" if number == 1 else "s"


def known_cluster(team: Team) -> Cluster | None:
    """Find the cluster that the team's runs train on; None: none is set up."""
    found: Cluster | None = import_string(
        "dashboard.supervision.clusters.read_cluster"
    )(team)
    return found


def describe_cluster_lack(needs: Needs, team: Team) -> str:
    """Say why a run cannot start on the team's cluster now; "" if it can.

    Two queries for a run that trains on one.
    """
    return "" if needs.ranks is None else lack_on(known_cluster(team), needs.ranks)


def lack_on(cluster: Cluster | None, ranks: Ranks) -> str:
    if cluster is None:
        return (
            "The run needs a Ray cluster, but none is set up. The operator sets "
            "COHORT_RAY_ADDRESS."
        )
    if cluster.problem:
        return f"Ray cluster {cluster.address}: {cluster.problem}"
    room = cluster.room(ranks)
    if room is None or room.is_free:
        return ""
    return f"Ray cluster {cluster.address}: {room.sentence}"
