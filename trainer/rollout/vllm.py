"""vLLM in a process of its own, a child of this one: a client of what samples there.

Each process of a run has one, on its own GPU. What vLLM does to its process, to
threads, signals, CUDA streams and classes of transformers, is done to no trainer.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from trainer.console import print_line
from trainer.host import tick
from trainer.model.policy import Policy
from trainer.rollout.engine import Sampled, SamplingParams, SeededPrompt
from trainer.rollout.wire import (
    ALIGNED_BYTES,
    DONE,
    ENDED,
    FAILED,
    LOAD,
    MODEL,
    PLACES,
    REFUSED,
    REST,
    ROOM,
    SAMPLE,
    WEIGHTS,
    Adapted,
    Forgotten,
    Order,
    Part,
    Question,
    in_parts,
    map_file,
)
from trainer.tokenizers import first_line

_MODULE = "trainer.rollout.vllm_worker"
_PART_BYTES = 256 * 2**20  # of weights that are sent at once
STORAGE_DEVICE = 6  # the place of the GPU's number among what a handle has
_END_SECONDS = 20.0  # until a process that has nothing left to answer is killed
# What tells a process its place among those of the run, and is none of the child's.
_PLACE = {
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "PYTORCH_CUDA_ALLOC_CONF"),
}


def why_not_rotated(policy: Policy, max_length: int) -> str:
    """Return why vLLM, for texts of up to `max_length`, rotates otherwise than the
    policy.

    It chooses longrope's factors by that length, where `Policy.fix_longest` takes the
    run's, and scales dynamic NTK as for the model's longest text. Empty: it does not.
    """
    rope = getattr(policy.model.config.get_text_config(), "rope_parameters", None) or {}
    for kind in (rope, *rope.values()):  # which may be by kind of layer
        match kind:
            case {"rope_type": "dynamic"} if not kind.get("alpha"):
                return 'vLLM scales rope_type "dynamic" at any length of a text'
            case {
                "rope_type": "longrope",
                "original_max_position_embeddings": original,
            } if (max_length > original) != (policy.longest > original):
                return (
                    f"vLLM rotates texts as ones of {max_length:,} tokens, and the "
                    f"run as ones of {policy.longest:,}"
                )
    return ""


@dataclass(frozen=True, kw_only=True)
class SamplerSettings:
    """The settings that vLLM is started with.

    >>> SamplerSettings(model="model", max_length=768, max_rows=64, cache_gib=1.0)
    """

    model: str  # folder or hub id
    max_length: int  # tokens of a prompt and its completion
    max_rows: int  # completions sampled at the same time
    cache_gib: float  # for keys and values, on each GPU
    revision: str | None = None
    dtype: torch.dtype = torch.float32
    lora_rank: int = 0  # of the adapters it can take; 0: none
    sleeps: bool = False
    tensor_parallel_size: int = 1  # GPUs that the model is split over


class VllmProcess:
    """A client of vLLM in a child of this process, which ends with this one.

    Whatever is asked of it raises `Forgotten` where the child has died, a ValueError
    where it refuses, and a RuntimeError where vLLM failed. An error ends the child:
    what it is in the middle of is not known.
    """

    def __init__(
        self, settings: SamplerSettings, device: torch.device, *, restarts: bool
    ) -> None:
        """Args: restarts: whether one that died may be started again, with the weights
        that the policy has by then.
        """
        self.swaps = False  # it takes adapters alone
        self.max_length = settings.max_length
        self.kind = "vLLM"
        self._settings = settings
        self._device = device
        self._restarts = restarts
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._memory = -1  # a file in memory
        self._room: torch.Tensor | None = None  # which the child has as well
        is_one = settings.tensor_parallel_size == 1
        self._shares_gpu = is_one and device.type == "cuda"
        self._is_asleep = False

    @property
    def name(self) -> str:
        return f"process of vLLM ({self._how_it_ended()})"

    def hold(self) -> None:
        """Start the child, or start it again if it has died.

        Raises:
            ValueError: vLLM is not installed, or cannot run the model.
        """
        if self._process is not None:
            if self._pipe is not None and self._process.poll() is None:
                return
            if not self._restarts:
                raise RuntimeError(f"The {self.name} is gone, with its weights.")
            print_line(f"starting vLLM again: the {self.name} is gone")
        self.close()
        self._memory = os.memfd_create("weights")
        self._pipe, theirs = multiprocessing.Pipe()
        with theirs:
            files = (theirs.fileno(), self._memory)
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, *map(str, files)],
                stdin=subprocess.DEVNULL,
                pass_fds=files,
                env=_environment(self._settings, self._device),
            )
        try:
            self._lora_rank, version = self._ask(MODEL, self._settings)
        except Forgotten:
            raise ValueError(f"The {self.name} did not start. See the log.") from None
        self.kind = f"vLLM {version}"

    def check_adapters(self, layers: Iterable[str], *, rank: int) -> None:
        """Ask whether it takes such adapters by themselves."""
        adapted = Adapted(layers=tuple(layers), rank=rank)
        self.swaps = rank <= self._lora_rank and self._ask(PLACES, adapted)

    def parts(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[list[tuple[str, torch.Tensor]]]:
        return in_parts(weights, num_bytes=_PART_BYTES)

    def add_weights(
        self, part: list[tuple[str, torch.Tensor]], *, is_adapters: bool
    ) -> None:
        """Send some of the weights, or adapters, that it is to sample with."""
        fields = tuple((name, weight.dtype, weight.shape) for name, weight in part)
        size = sum(weight.nbytes + ALIGNED_BYTES for _, weight in part)
        message = Part(fields=fields, is_adapters=is_adapters)
        if self._room is None or len(self._room) < size:
            self._room = None
            self._room = self._make_room(max(size, _PART_BYTES))
        for (_, place), (_, weight) in zip(
            message.places(self._room), part, strict=True
        ):
            place.copy_(weight.detach())
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        self._ask(WEIGHTS, message)

    def load(self, names: Sequence[str], *, rank: int, alpha: float) -> None:
        """Have it sample with what it was sent; a rank of 0: whole weights."""
        self._room = None  # before the child lets go of what it has lent
        self._ask(LOAD, Order(names=tuple(names), rank=rank, alpha=alpha))

    def sample(
        self,
        prompts: Sequence[SeededPrompt],
        params: SamplingParams,
        *,
        eos_ids: tuple[int, ...],
        on_ended: Callable[[int, Sampled], None],
    ) -> None:
        """Tell of each completion as it ends, by its prompt's number."""
        question = Question(prompts=prompts, params=params, eos_ids=eos_ids, version=0)
        self._ask(SAMPLE, question, on_ended=on_ended)

    def rest(self) -> None:
        """Give the GPU's memory back, but weights that adapters stand beside."""
        if self._settings.sleeps and not self._is_asleep:
            with suppress(Forgotten):  # which the next question notices too
                self._ask(REST, self.swaps)
            self._is_asleep = True

    def close(self) -> None:
        """End the child."""
        if self._pipe is not None:
            self._pipe.close()  # at which it ends
            os.close(self._memory)
        self._pipe = self._room = None
        self._is_asleep = False
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
            self._process.kill()
            self._process.wait()

    def _ask(
        self,
        kind: str,
        message: object,
        *,
        on_ended: Callable[[int, Sampled], None] = lambda _number, _sampled: None,
    ) -> Any:
        if self._is_asleep:
            self._is_asleep = False
            # what torch keeps of an update's memory, vLLM could not take
            torch.cuda.empty_cache()
        try:
            for said, value in self._answers(kind, message):
                tick()
                if said == DONE:
                    return value
                if said == REFUSED:
                    raise ValueError(value)
                if said == FAILED:
                    raise RuntimeError(f"vLLM failed: {value}")
                if said == ENDED:
                    on_ended(*value)
        except BaseException:
            self.close()  # what it says further would be taken for another answer
            raise

    def _answers(self, kind: str, message: object) -> Iterator[tuple[str, Any]]:
        try:
            if self._pipe is None:
                raise EOFError
            self._pipe.send((kind, message))
            while True:
                yield self._pipe.recv()
        except (EOFError, OSError):  # of the pipe: a listener's are not raised here
            raise Forgotten from None

    def _make_room(self, size: int) -> torch.Tensor:
        """Return memory of the GPU that the child lends, or else of the machine."""
        handle = self._ask(ROOM, (size, self._shares_gpu))
        if handle is None:
            self._shares_gpu = False
            return map_file(self._memory, size)
        try:
            handle[STORAGE_DEVICE] = self._device.index  # which the child calls 0
            room: torch.Tensor = rebuild_cuda_tensor(*handle)
        except RuntimeError as error:
            print_line(f"vLLM takes weights from main memory: {first_line(error)}")
            self._shares_gpu = False
            return self._make_room(size)
        return room

    def _how_it_ended(self) -> str:
        code = None if self._process is None else self._process.poll()
        if code is None:
            return "it runs"
        if code < 0:
            why = ", as when memory runs out" if code == -signal.SIGKILL else ""
            return f"it was killed by {signal.Signals(-code).name}{why}"
        return f"it exited with code {code}"


def _environment(settings: SamplerSettings, device: torch.device) -> dict[str, str]:
    """Return the child's: it is in no group of processes, and sees this one's GPU."""
    own = {name: value for name, value in os.environ.items() if name not in _PLACE}
    threads = max(1, torch.get_num_threads() // settings.tensor_parallel_size)
    own |= {
        "OMP_NUM_THREADS": str(threads),
        # memory in segments that grow cannot be lent
        "PYTORCH_ALLOC_CONF": "expandable_segments:False",
    }
    if device.type == "cuda" and settings.tensor_parallel_size == 1:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        own["CUDA_VISIBLE_DEVICES"] = (
            seen.split(",")[device.index] if seen else str(device.index)
        )
    return own
