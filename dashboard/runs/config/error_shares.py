"""`reward.max_error_share` of a run: the one setting that a resume may change."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from trainer.config import RunConfig

NAME = "max_error_share"


def common_share(config: dict[str, Any]) -> float | None:
    """The share that all phases allow; None where they differ."""
    shares = {reward.get(NAME) for reward in _rewards(config)}
    return shares.pop() if len(shares) == 1 else None


def allow_share(config: dict[str, Any], share: float) -> dict[str, Any]:
    """The configuration with this share of errors allowed, in every phase."""
    tree = copy.deepcopy(config)
    for reward in _rewards(tree):
        reward[NAME] = share
    return RunConfig.model_validate(tree).model_dump(mode="json")


def _rewards(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Of the run, and of each phase that has a share of its own."""
    yield config["reward"]
    for phase in config.get("phases") or ():
        reward = phase.get("changes", {}).get("reward", {})
        if NAME in reward:
            yield reward
