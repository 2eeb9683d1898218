"""What every part of a configuration is."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A frozen part of the configuration; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def unit(name: str) -> dict[str, Any]:
    return {"unit": name}
