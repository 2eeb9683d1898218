"""Settings that change while a run trains: which may, and how it hears of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator

from trainer.config.part import Part
from trainer.config.run import RunConfig

# The loop reads these where it needs them; all else went into what it holds.
MAY_CHANGE = (
    "optim.num_steps",
    "evaluation.every_steps",
    "checkpoint.every_steps",
    "checkpoint.keep_last",
    "logging.groups_every_steps",
    "logging.token_groups",
    "logging.tokens_every_steps",
)


class Change(Part):
    """Settings that hold from the step behind `after_step` on; null: from the next on.

    >>> Change(number=1, after_step=30, settings={"optim.num_steps": 200})
    """

    number: int = Field(ge=1, description="Of the run's changes, in order.")
    after_step: int | None = Field(None, ge=0)
    settings: dict[str, int]

    @field_validator("settings")
    @classmethod
    def _may_change(cls, settings: dict[str, int]) -> dict[str, int]:
        for path in settings:
            if path not in MAY_CHANGE:
                raise ValueError(
                    f"{path} cannot change while a run trains. It can: "
                    f"{', '.join(MAY_CHANGE)}."
                )
        return settings


class ChangeList(Part):
    """changes.json, beside the event log."""

    changes: tuple[Change, ...] = ()


def change_settings(config: RunConfig, settings: Mapping[str, int]) -> RunConfig:
    """The configuration with some settings changed; ValueError where they do not fit.

    More steps are steps of the last phase, where there are phases. A phase that has an
    interval of its own keeps it.
    """
    tree: dict[str, Any] = config.model_dump()
    for path, value in settings.items():
        part, name = path.split(".")
        tree[part][name] = value
    more = tree["optim"]["num_steps"] - config.optim.num_steps
    if tree["phases"] and more:
        *others, last = tree["phases"]
        num_steps = last["num_steps"] + more
        tree["phases"] = [*others, {**last, "num_steps": num_steps}]
    return RunConfig.model_validate(tree)
