"""What a run needs from a worker, and what the live workers have.

Workers belong to a higher layer, so their module is imported by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from django.utils.module_loading import import_string

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
class Needs:
    """The settings that decide where a run can train.

    Memory is not one of them: the estimate assumes full lengths, so a run that seems
    too large may well fit.
    """

    device: str = "auto"  # auto | cpu | cuda
    num_gpus: int = 1  # where it trains on GPUs

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
        if distributed.get("where") == "ray":  # its worker only follows it
            return cls(device="cpu")
        num_processes = distributed.get("num_processes") or 1
        return cls(
            device=(config.get("model") or {}).get("device") or "auto",
            num_gpus=max(num_processes, num_engine),
        )

    def __str__(self) -> str:
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
        return self.has(needs) and self._is_for(self._num_used(needs))

    def _num_used(self, needs: Needs) -> int:
        return needs.num_gpus if self.num_gpus and needs.device != "cpu" else 0

    def _is_for(self, num_used: int) -> bool:
        of_class = {"cpu": num_used == 0, "gpu": num_used == 1, "gpus": num_used > 1}
        return of_class.get(self.takes, True)


def known_hosts() -> list[Host]:
    """The live workers that are not drained; one query."""
    hosts: list[Host] = import_string("dashboard.training.worker_hosts.list_hosts")()
    return hosts


def describe_lack(
    needs: Needs, hosts: Sequence[Host], *, or_else: str = "clone the run with"
) -> str:
    """Why no live worker takes such a run, and what to do; "" if one does."""
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
    """A message for each package that a suitable worker lacks."""
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
    devices: list[Device] = import_string("dashboard.training.workers.list_devices")()
    # Each kind of GPU is listed once.
    kinds = dict.fromkeys(devices)
    return sorted(kinds, key=lambda device: -device.memory_bytes)
