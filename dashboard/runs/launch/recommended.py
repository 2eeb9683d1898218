"""Recommended settings of a model: a starter's own, or by its size and the devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboard.datasets.models import DatasetVersion
from dashboard.runs.config.fields import put
from dashboard.runs.launch.base_models import StarterModel, read_model_config
from dashboard.runs.launch.row_limits import (
    LENGTH,
    bound_longest,
    count_longest,
    find_limit,
    longest_answer,
)
from dashboard.runs.queue.hosts import known_devices
from trainer.config import DataConfig
from trainer.recommended import recommend, size_in_config, size_in_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommended:
    about: str  # the model they suit; "": its size is unknown
    tree: dict[str, Any]  # as in RunConfig; the rest keeps its defaults


def recommend_settings(
    path: str, starters: Sequence[StarterModel], version: DatasetVersion | None
) -> Recommended:
    """For a model, trained on a dataset or on one that is not chosen yet."""
    own = next((one for one in starters if one.path == path), None)
    if own is not None and own.has_settings:
        return Recommended(about=own.title, tree=own.read_settings())
    tree = read_model_config(Path(path)) if path.startswith("/") else None
    size = (size_in_config(tree) if tree else None) or size_in_name(path)
    if size is None:
        return Recommended(about="", tree={})
    devices = known_devices()
    device = next((one for one in devices if one.is_gpu), None) or next(
        iter(devices), None
    )
    limit = find_limit(tree) if tree else None
    found = recommend(
        size,
        on_gpu=device.is_gpu if device else None,
        memory_bytes=(device.memory_bytes or None) if device else None,
        longest_answer=longest_answer(version.pk) if version else 0,
        room=limit - _prompt_tokens(version, path) if limit else None,
    )
    settings: dict[str, Any] = {}
    for name, value in found.settings.items():
        put(settings, name, value)
    way = "LoRA" if found.is_lora else "full training"
    return Recommended(about=f"{_shown(size)} parameters, {way}", tree=settings)


def _shown(size: float) -> str:
    """As model cards have it: 135 M, 1.5 B."""
    return f"{size / 1e9:.3g} B" if size >= 0.9995e9 else f"{size / 1e6:.3g} M"


def _prompt_tokens(version: DatasetVersion | None, path: str) -> int:
    """The longest prompt in tokens; uncounted, an upper bound or the default limit."""
    default: int = DataConfig.model_fields[LENGTH.rpartition(".")[2]].default
    if version is None:
        return default
    counted = count_longest(version, path)
    return counted or min(default, bound_longest(version, has_template=True))
