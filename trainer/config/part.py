"""What every part of a configuration is."""

from __future__ import annotations

from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    ValidationInfo,
    field_validator,
)
from pydantic_core import CoreSchema, SchemaValidator, core_schema


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


Value = TypeVar("Value")


class _AutoOrValue:
    """Says of a value that is neither only what is wrong with it as a value."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        value = SchemaValidator(handler.generate_schema(get_args(source)[0]))

        def check(given: Any, _: Any) -> Any:
            return given if given == "auto" else value.validate_python(given)

        return core_schema.no_info_wrap_validator_function(check, handler(source))


# What the engine chooses by the memory that it finds, unless it is given.
Auto = Annotated[Value | Literal["auto"], _AutoOrValue()]
