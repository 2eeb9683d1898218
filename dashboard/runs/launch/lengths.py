"""Whether prompts with their completions fit into the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dashboard.datasets.models import DatasetVersion
from dashboard.runs.launch.model_config import has_chat_template, read_model_config
from dashboard.runs.launch.row_fit import bound_longest, count_longest
from trainer.config import RunConfig

# As the kinds of models call it; those that can read a text of any length name none.
NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")


def find_limit(tree: Mapping[str, Any]) -> int | None:
    """Tokens that a model was made for; None: its configuration names no such number.

    >>> find_limit({"max_position_embeddings": 32_768, "rope_scaling":
    ...     {"factor": 4.0, "original_max_position_embeddings": 32_768}})
    131072
    """
    inner = tree.get("text_config")
    config = inner if isinstance(inner, dict) else tree
    named = next((n for name in NAMES if (n := _count(config.get(name)))), None)
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if named is None or not isinstance(scaling, dict):
        return named
    original = _count(scaling.get("original_max_position_embeddings"))
    factor = scaling.get("factor")
    if not isinstance(factor, int | float) or not math.isfinite(factor):
        return named
    return max(named, int((original or 0) * factor))


def _count(value: object) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and value > 0 else None  # type: ignore[operator,return-value]  # a number


def warn_of_lengths(config: RunConfig, dataset: DatasetVersion) -> str:
    """A sentence where a completion may go on behind the model's end; else ""."""
    path = config.model.path
    tree = read_model_config(Path(path)) if path.startswith("/") else None
    limit = find_limit(tree) if tree else None
    if limit is None:
        return ""
    known = count_longest(dataset, path)
    is_auto = config.data.chat_template == "auto"
    has_template = is_auto and has_chat_template(Path(path))
    bound = known or bound_longest(dataset, has_template=has_template)
    prompt = min(config.data.max_prompt_tokens, bound)
    longest = max(stage.config.rollout.max_new_tokens for stage in config.stages)
    if prompt + longest <= limit:
        return ""
    room = limit - prompt
    remedy = (
        f"Lower rollout.max_new_tokens to {room:,}, or take a model that goes further."
        if room > 0
        else "Take shorter prompts, or a model that goes further."
    )
    return (
        f"Prompts of up to {prompt:,} tokens with completions of up to {longest:,} "
        f"have {prompt + longest:,} tokens, but the model was made for {limit:,}: "
        f"behind them it writes nonsense, or the run fails. {remedy}"
    )
