"""Base class of the parts of a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import (
    Annotated,
    Any,
    Literal,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_args,
)

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, SchemaValidator, core_schema


class Part(BaseModel):
    """A frozen part of the configuration; unknown keys are errors.

    TOML cannot say null, so "none" says it wherever a value may be empty.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        field_title_generator=lambda name, _: name.replace("_", " ").capitalize(),
    )

    @field_validator("*", mode="before")
    @classmethod
    def _none_has_a_name(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        return cls.value_of(info.field_name, value)

    @classmethod
    def value_of(cls, name: str, value: Any) -> Any:
        """Return what a file's value for a field means."""
        field = cls.model_fields.get(name)
        was_switch = read_about(field).get("was_switch") if field else None
        if was_switch and value in (False, "", "off", True, "on"):
            return was_switch[value in (True, "on")]
        if not isinstance(value, str) or value != "none":
            return value
        may_be_empty = field and NoneType in get_args(field.annotation)
        return None if may_be_empty else value


When = dict[str, list[Any]]  # settings by path, each with values that it may have
NoEffect = dict[str, When]  # by reason; the first whose settings all fit holds


class About(TypedDict, total=False):
    """Facts of a field beside its title, description and bounds.

    An effect is one on training, or on the KL to a reference that was asked for; a
    deviation that is only logged counts as none. Beside settings, `no_effect` may name
    the reward's `recipe.combine` and `recipe.is_one_rule`.
    """

    unit: str
    section: str  # of the form, which this field begins
    cluster_title: str  # where the run is on a cluster
    main: int  # place among the settings that people change from run to run
    is_long: bool  # a text of several lines
    is_json: bool  # written as JSON also where a form has another way
    choices: dict[str, str]  # what each means; "": left empty
    was_switch: tuple[str, str]  # what "off" and "on" of older versions mean
    no_effect: NoEffect  # when the field does nothing
    fork: str  # why a run that goes on from a checkpoint cannot change it
    may_change: bool  # while the run trains
    of_run: bool  # started once, so no phase can change it


def about(**facts: Unpack[About]) -> dict[str, Any]:
    """Make a field's `json_schema_extra`, which `read_about` reads."""
    return dict(facts)


def read_about(field: FieldInfo) -> About:
    return cast(About, field.json_schema_extra or {})


def parts_of(model: type[BaseModel]) -> dict[str, type[Part]]:
    return {
        name: field.annotation
        for name, field in model.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Part)
    }


def leaves(model: type[Part], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield each setting below `model`, under its path: optim.num_steps."""
    parts = parts_of(model)
    for name, field in model.model_fields.items():
        if name in parts:
            yield from leaves(parts[name], f"{prefix}{name}.")
        else:
            yield prefix + name, field


Value = TypeVar("Value")


class _AutoOrValue:
    """Says of a value that is neither only what is wrong with it as a value."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        value = SchemaValidator(handler.generate_schema(get_args(source)[0]))

        def check(raw: Any, _: Any) -> Any:
            return raw if raw == "auto" else value.validate_python(raw)

        return core_schema.no_info_wrap_validator_function(check, handler(source))


# What the engine chooses by the memory that it finds, unless it is given.
Auto = Annotated[Value | Literal["auto"], _AutoOrValue()]
