"""GPUs as NVIDIA's management library sees them, without starting a program.

`nvidia-smi` takes some 50 ms of CPU for each look; a call into the library that it is
made of, some 0.1 ms. Reference: NVML API, nvmlDeviceGetUtilizationRates and following.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LIBRARY = "libnvidia-ml.so.1"


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    percent: float | None  # of the time, a kernel ran
    memory_bytes: float | None


class Gpus:
    """The GPUs that this process may use; none where there is no such library."""

    def __init__(self, library: Any = None) -> None:
        self._library = library or _load()
        self._handles = self._open() if self._library else []

    def __len__(self) -> int:
        return len(self._handles)

    def read(self) -> list[GpuUse]:
        return [
            GpuUse(percent=self._percent(one), memory_bytes=self._memory(one))
            for one in self._handles
        ]

    def _open(self) -> list[ctypes.c_void_p]:
        if self._library.nvmlInit_v2() != 0:
            return []
        chosen = chosen_gpus(os.environ)
        if chosen is None:
            count = ctypes.c_uint()
            if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
                return []
            chosen = [str(index) for index in range(count.value)]
        handles = [self._find(name) for name in chosen]
        return [handle for handle in handles if handle is not None]

    def _find(self, name: str) -> ctypes.c_void_p | None:
        handle = ctypes.c_void_p()
        if name.isdigit():
            call = self._library.nvmlDeviceGetHandleByIndex_v2
            status = call(ctypes.c_uint(int(name)), ctypes.byref(handle))
        else:
            call = self._library.nvmlDeviceGetHandleByUUID
            status = call(name.encode(), ctypes.byref(handle))
        return handle if status == 0 else None

    def _percent(self, handle: ctypes.c_void_p) -> float | None:
        use = _Utilization()
        call = self._library.nvmlDeviceGetUtilizationRates
        return float(use.gpu) if call(handle, ctypes.byref(use)) == 0 else None

    def _memory(self, handle: ctypes.c_void_p) -> float | None:
        memory = _Memory()
        call = self._library.nvmlDeviceGetMemoryInfo
        return float(memory.used) if call(handle, ctypes.byref(memory)) == 0 else None


def chosen_gpus(environment: Mapping[str, str]) -> list[str] | None:
    """Numbers or UUIDs in CUDA_VISIBLE_DEVICES; None: all."""
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    return [name.strip() for name in value.split(",") if name.strip() not in ("", "-1")]


def _load() -> Any:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return None  # no NVIDIA driver here
