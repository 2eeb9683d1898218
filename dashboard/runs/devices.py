"""What a run could be trained on, as far as workers have said.

Workers belong to a higher rung, so who knows them is named here.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.module_loading import import_string


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    name: str  # "NVIDIA L4", or "CPU of worker-1"
    memory_bytes: int
    is_gpu: bool


def known_devices() -> list[Device]:
    """Those of the workers that are there, the largest first; one query."""
    devices: list[Device] = import_string("dashboard.training.workers.list_devices")()
    # A GPU of a kind is named once, however many of it there are.
    kinds = dict.fromkeys(devices)
    return sorted(kinds, key=lambda device: -device.memory_bytes)
