"""What every part of a configuration is."""

from __future__ import annotations

from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Part(BaseModel):
    """A frozen part of the configuration; unknown keys are errors.

    TOML cannot say null, so "none" says it wherever a value may be empty.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _none_has_a_name(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        return cls.value_of(info.field_name, value)

    @classmethod
    def value_of(cls, name: str, value: Any) -> Any:
        """What a file's value for a field means."""
        field = cls.model_fields.get(name)
        may_be_empty = field and NoneType in get_args(field.annotation)
        return None if value == "none" and may_be_empty else value


def unit(name: str) -> dict[str, Any]:
    return {"unit": name}
