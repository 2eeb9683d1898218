"""The memory estimate of the launch form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dashboard.runs.launch.base_models import read_model_config
from dashboard.runs.queue.hosts import Cluster, Device, known_devices
from trainer.config import RunConfig
from trainer.sizes.memory import MemoryEstimate, PassSizes, estimate

LONGEST_PROBLEM = 300  # characters
ALWAYS = {
    "weights": "Weights",
    "master_weights": "Float32 master weights",
    "optimizer": "Optimizer",
    "reference": "Reference model",
    "engine": "vLLM weights and KV cache",
    "snapshot": "Weights copy for sampling",
    "reward_models": "Reward models",
}
UPDATING = {
    "gradients": "Gradients",
    "activations": "Activations",
    "logits": "Logits",
}
SAMPLING = {
    "kv_cache": "KV cache",
    "sampling": "Sampling logits",
    "sleeping_engine": "vLLM, idle during updates",
}
MEASURING = {"measuring": "Start model"}


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPart:
    title: str
    num_bytes: int
    colour: int  # of the page's series
    start_percent: float  # its place in the bar
    percent: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """What the run needs, as a share of a device."""

    device: Device
    num_bytes: int
    sizes: PassSizes | None = None  # that the run would choose there

    @property
    def percent(self) -> float:
        return 100 * self.num_bytes / self.device.memory_bytes

    @property
    def tokens(self) -> str:
        return f"{self.sizes.tokens:,}" if self.sizes else ""

    @property
    def is_enough(self) -> bool:
        return self.percent <= 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Peak memory, in the phase that needs the most."""

    problem: str = ""  # why there is no estimate
    peak: str = ""  # when it is
    phase: str = ""
    total: int = 0
    # The minimum, if the run sizes micro-batches by GPU memory.
    least: int = 0
    parts: tuple[MemoryPart, ...] = ()
    others: tuple[tuple[str, int], ...] = ()  # not needed at the peak
    ppo_critic: int = 0
    reward_models_elsewhere: int = 0  # on the other device: CPU or GPU
    unknown_reward_models: tuple[str, ...] = ()
    fits: tuple[Fit, ...] = ()
    host: Fit | None = None  # the main memory of all ranks of a machine with GPUs

    @property
    def is_too_much(self) -> bool:
        """For every known device."""
        return bool(self.fits) and not any(fit.is_enough for fit in self.fits)


def estimate_memory(
    config: RunConfig, *, largest_set: int = 0, cluster: Cluster | None = None
) -> Memory:
    """Of each rank. `largest_set`: rows of the largest evaluation set; `cluster`: the
    team's, whose nodes count for a run that trains there."""
    if not config.model.path.startswith("/"):
        return Memory(
            problem="No memory estimate: it needs the files of the model, which is not "
            "downloaded yet."
        )
    model_config = read_model_config(Path(config.model.path))
    if model_config is None:
        return Memory(
            problem="No memory estimate: this server cannot read config.json in "
            f"{config.model.path}."
        )
    on_cluster = config.distributed.where == "ray"
    known = (cluster.devices if cluster else []) if on_cluster else known_devices()
    devices = _possible(config, known)
    on_gpu = any(device.is_gpu for device in known)  # what reward models may take, too

    def estimated(device: Device | None) -> MemoryEstimate:
        is_gpu = device is not None and device.is_gpu
        return estimate(
            config,
            model_config,
            on_gpu=on_gpu,
            gpu_bytes=(device.memory_bytes or None) if device and is_gpu else None,
            largest_set=largest_set,
        )

    try:
        least = estimated(None)
        on_each = [(device, estimated(device)) for device in devices]
    except ValueError as error:
        return Memory(problem=str(error)[:LONGEST_PROBLEM])
    except (TypeError, ArithmeticError):  # the file may contain anything
        return Memory(
            problem=f"No memory estimate: config.json in {config.model.path} does not "
            "describe a language model."
        )
    names = {phase.first_step: phase.name for phase in config.phase_configs}
    found = on_each[0][1] if on_each else least  # of the largest
    ranks = config.distributed.num_processes  # of a machine
    host_bytes = ranks * (found.parked + found.reward_models_elsewhere)
    hosts = [
        Fit(device=device, num_bytes=host_bytes)
        for device in known
        if device.memory_bytes and not device.is_gpu and device not in devices
    ]
    return replace(
        _describe(found, names[found.first_step]),
        least=least.total if least.is_least else 0,
        fits=tuple(
            Fit(
                device=device,
                num_bytes=there.total * (1 if device.is_gpu else ranks),
                sizes=there.sizes,
            )
            for device, there in on_each
            if device.memory_bytes
        ),
        host=hosts[0] if hosts else None,
    )


def _possible(config: RunConfig, devices: Sequence[Device]) -> list[Device]:
    """Those the run would use: a GPU if there is one, unless it needs a CPU."""
    gpus = [device for device in devices if device.is_gpu]
    if config.model.device == "cuda" or (config.model.device == "auto" and gpus):
        return gpus
    return [device for device in devices if not device.is_gpu]


def _describe(found: MemoryEstimate, phase: str) -> Memory:
    peak, at_peak, otherwise = _peak(found)
    return Memory(
        peak=peak,
        phase=phase,
        total=found.total,
        parts=tuple(_parts(found, {**ALWAYS, **at_peak})),
        others=tuple(
            (title, getattr(found, name))
            for name, title in otherwise.items()
            if getattr(found, name)
        ),
        ppo_critic=found.ppo_critic,
        reward_models_elsewhere=found.reward_models_elsewhere,
        unknown_reward_models=found.unknown_reward_models,
    )


def _peak(found: MemoryEstimate) -> tuple[str, dict[str, str], dict[str, str]]:
    """When the peak occurs, the parts then, and the parts at other times."""
    measures = found.measuring > found.while_updating
    trains, training = (
        ("measuring KL", MEASURING) if measures else ("updating", UPDATING)
    )
    other = UPDATING if measures else MEASURING
    if found.is_one_step_off:
        return f"while sampling and {trains} at once", training | SAMPLING, other
    if found.while_sampling > sum(getattr(found, name) for name in training):
        return "while sampling", SAMPLING, UPDATING | MEASURING
    return f"while {trains}", training, SAMPLING | other


def _parts(found: MemoryEstimate, titles: dict[str, str]) -> list[MemoryPart]:
    """Those that are there, one after the other along the bar."""
    parts: list[MemoryPart] = []
    start = 0
    for colour, (name, title) in enumerate(titles.items(), start=1):
        num_bytes = getattr(found, name)
        if not num_bytes:
            continue
        parts.append(
            MemoryPart(
                title=title,
                num_bytes=num_bytes,
                colour=colour,
                start_percent=100 * start / found.total,
                percent=100 * num_bytes / found.total,
            )
        )
        start += num_bytes
    return parts
