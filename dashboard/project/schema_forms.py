"""A pydantic model's fields as form fields: labels, bounds, text to value and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, FiniteFloat, TypeAdapter, ValidationError

from dashboard.project.database import clean_json

Kind = Literal["whole", "number", "switch", "choice", "text", "lines", "object", "json"]
KINDS: dict[str, Kind] = {
    "boolean": "switch",
    "integer": "whole",
    "number": "number",
    "object": "object",
    "string": "text",
}
LONG_TEXT = 2_000  # characters; texts that may be longer have several lines


class InvalidValue(ValueError):
    """A text that is not a value of its field's kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaField:
    """A field of a model: its path, its allowed values, and its words."""

    path: str  # "optim.learning_rate", or "tolerance"
    title: str
    help: str
    kind: Kind
    default: Any  # None if it is required
    about: Mapping[str, Any]  # `json_schema_extra`
    choices: tuple[Any, ...] = ()
    is_optional: bool = False
    may_be_auto: bool = False  # a value, or "auto": the engine chooses
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    max_length: int | None = None

    @property
    def html_id(self) -> str:
        return "field-" + self.path.replace(".", "-")

    @property
    def is_number(self) -> bool:
        return self.kind in ("whole", "number")

    @property
    def unit(self) -> str:
        return str(self.about.get("unit", ""))

    @property
    def shown_unit(self) -> str:
        """The unit; empty if the title contains it: Prompts per step."""
        return "" if self.unit in self.title.lower() else self.unit

    @property
    def is_long(self) -> bool:
        """Its input has several lines."""
        is_long = self.about.get("is_long") or (self.max_length or 0) > LONG_TEXT
        return bool(is_long) or self.kind in ("lines", "object", "json")

    @property
    def is_program(self) -> bool:
        return self.kind == "text" and "\n" in self.default_text

    @property
    def num_lines(self) -> int:
        """The initial height of its input; more for a program."""
        return 14 if self.is_program else 4

    @property
    def default_text(self) -> str:
        return self.write(self.default)

    @property
    def shown_default(self) -> str:
        """The default for the help line; empty if it is long."""
        return "" if self.is_long else self.default_text

    @property
    def options(self) -> list[tuple[str, str]]:
        """The value and label of each choice."""
        texts = [""] if self.is_optional else []
        texts += [self.write(choice) for choice in self.choices]
        words = self.about.get("choices", {})
        return [
            (text, ": ".join(filter(None, (text or "none", words.get(text)))))
            for text in texts
        ]

    @property
    def bounds(self) -> str:
        """The bounds in words; empty for choices and switches."""
        if self.minimum is not None and self.maximum is not None:
            return f"{self.minimum:,} to {self.maximum:,}"
        bounds = (
            ("above {:,}", self.above),
            ("{:,} or more", self.minimum),
            ("below {:,}", self.below),
            ("{:,} or less", self.maximum),
        )
        return ", ".join(
            words.format(bound) for words, bound in bounds if bound is not None
        )

    @property
    def value_type(self) -> TypeAdapter[Any]:
        """The type of its values, with their bounds or choices."""
        kind: Any = Any
        match self.kind:
            case "choice":
                kind = Literal[self.choices]
            case "object":
                kind = dict[str, Any]
            case "whole" | "number":
                number = int if self.kind == "whole" else FiniteFloat
                bounds = Field(
                    ge=self.minimum, le=self.maximum, gt=self.above, lt=self.below
                )
                kind = Annotated[number, bounds]
        return TypeAdapter(kind | None)

    def show(self, text: str) -> str:
        """Write a form text as messages show it."""
        if self.kind == "switch":
            return "on" if text else "off"
        return text or "empty"

    def is_same(self, text: str, other: str) -> bool:
        """Tell whether two texts mean one value: 1e-6 and 0.000001."""
        if not self.is_number:
            return text == other
        try:
            return float(text) == float(other)
        except ValueError:
            return text.strip() == other.strip()

    def read(self, text: str) -> Any:
        """Read a form text as a value for the model, which parses numbers.

        Raises:
            InvalidValue: it is no JSON, in a field for JSON.
        """
        if self.kind == "switch":
            return text == "on"
        if self.is_optional and not text.strip():
            return None
        match self.kind:
            case "choice":
                values = {self.write(choice): choice for choice in self.choices}
                return values.get(text, text)
            case "text":
                return unix_lines(text)
            case "lines":
                return [line for line in unix_lines(text).split("\n") if line.strip()]
            case "object" | "json":
                return self._read_json(text) if text.strip() else self.default
        return text.strip()

    def read_or_text(self, text: str) -> Any:
        """Read it, or leave it for the model to refuse."""
        try:
            return self.read(text)
        except InvalidValue:
            return text

    def _read_json(self, text: str) -> Any:
        try:
            value = json.loads(text)
            json.dumps(value, allow_nan=False)  # Python reads NaN, which is no JSON
            return value
        except (ValueError, RecursionError):
            is_object = self.kind == "object"
            example = '{"tag": "final"}' if is_object else '[1, 2] or ["a"]'
            raise InvalidValue(
                f"Invalid JSON: {text[:60]!r}. Example: {example}."
            ) from None

    def write(self, value: Any) -> str:
        """Write a value of the model as a form text."""
        if value is None:
            return ""
        if isinstance(value, bool):
            if "was_switch" in self.about:
                return str(self.about["was_switch"][value])
            off = "off" if self.kind == "choice" else ""
            return "on" if value else off
        if isinstance(value, float):
            return write_number(value)
        if self.kind == "lines":
            return "\n".join(value)
        if self.kind in ("object", "json"):
            return json.dumps(value, ensure_ascii=False)
        return str(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundField:
    """A field with its text in a form."""

    field: SchemaField
    text: str
    errors: Sequence[str]

    @property
    def is_changed(self) -> bool:
        """Differs from the default."""
        return not self.field.is_same(self.text, self.field.default_text)


class SettingsForm:
    """Settings as texts, and the errors of each."""

    def __init__(
        self,
        fields: Iterable[SchemaField],
        posted: Mapping[str, str],
        *,
        prefix: str = "",
    ) -> None:
        """Take what is posted; each setting has its default if nothing is."""
        self.fields = {field.path: field for field in fields}
        self.texts = {
            path: unix_lines(
                posted.get(
                    prefix + path,
                    # Browsers do not send a switch that is off.
                    "" if posted and field.kind == "switch" else field.default_text,
                )
            )
            for path, field in self.fields.items()
        }
        self.errors: dict[str, list[str]] = {}

    def fill(self, values: Mapping[str, Any]) -> Self:
        """Set values; another release may have settings that this one has not."""
        for path in values.keys() & self.fields.keys():
            self.texts[path] = self.fields[path].write(values[path])
        return self

    @property
    def items(self) -> list[BoundField]:
        return [
            BoundField(
                field=field, text=self.texts[path], errors=self.errors.get(path, [])
            )
            for path, field in self.fields.items()
        ]


class OptionsForm(SettingsForm):
    """Settings of another program, which checks more than their bounds."""

    def read(self) -> dict[str, Any] | None:
        """Return what differs from the defaults; None: see errors."""
        values: dict[str, Any] = {}
        for item in self.items:
            field, path = item.field, item.field.path
            try:
                if item.is_changed:
                    value = field.value_type.validate_python(field.read(item.text))
                    values[path] = clean_json(value)
            except ValidationError as invalid:
                self.errors[path] = [explain(field, invalid.errors()[0])]
            except InvalidValue as error:
                self.errors[path] = [str(error)]
        return None if self.errors else values


def schema_fields(model: type[BaseModel]) -> tuple[SchemaField, ...]:
    """List the fields, and those of models inside it. Cache it: a schema takes ms."""
    schema = model.model_json_schema()
    return tuple(_fields(model, schema, schema.get("$defs", {}), prefix=""))


def fields_of_schema(schema: Mapping[str, Any]) -> tuple[SchemaField, ...]:
    """List the fields of another program's model; models inside it are JSON."""
    properties = schema.get("properties", {}).items()
    return tuple(_describe(name, field, None) for name, field in properties)


def _fields(
    model: type[BaseModel],
    schema: Mapping[str, Any],
    parts: Mapping[str, Mapping[str, Any]],
    *,
    prefix: str,
) -> Iterator[SchemaField]:
    for name, info in model.model_fields.items():
        part, path = info.annotation, prefix + name
        if isinstance(part, type) and issubclass(part, BaseModel):
            yield from _fields(part, parts[part.__name__], parts, prefix=f"{path}.")
        else:
            about = info.json_schema_extra
            yield _describe(path, schema["properties"][name], about)


def _describe(path: str, schema: dict[str, Any], about: Any) -> SchemaField:
    options = schema.get("anyOf", [schema])
    shapes = [option for option in options if option.get("type") != "null"]
    choices = [
        choice
        for shape in shapes
        for choice in shape.get("enum", [shape["const"]] if "const" in shape else [])
    ]
    shapes = [shape for shape in shapes if not shape.keys() & {"enum", "const"}]
    kind, shape = _kind(shapes, choices), {**schema, **(shapes[0] if shapes else {})}
    if (about or {}).get("is_json"):
        kind = "json"
    if kind == "choice" and shapes:
        choices += [True, False]
    name = path.rpartition(".")[2].replace("_", " ")
    title = schema.get("title", "")
    return SchemaField(
        path=path,
        # pydantic derives a title from the name.
        title=name.capitalize() if title in ("", name.title()) else title,
        help=schema.get("description", ""),
        kind=kind,
        default=schema.get("default"),
        about=about or {},
        choices=tuple(choices) if kind == "choice" else (),
        is_optional=len(shapes) + bool(choices) < len(options),
        may_be_auto="auto" in choices and bool(shapes),
        minimum=shape.get("minimum"),
        maximum=shape.get("maximum"),
        above=shape.get("exclusiveMinimum"),
        below=shape.get("exclusiveMaximum"),
        max_length=shape.get("maxLength"),
    )


def _kind(shapes: Sequence[dict[str, Any]], choices: Sequence[Any]) -> Kind:
    if not shapes or (choices and shapes[0].get("type") == "boolean"):
        return "choice"
    if len(shapes) > 1:
        return "json"
    if shapes[0].get("items", {}).get("type") == "string":
        return "lines"
    return KINDS.get(shapes[0].get("type", ""), "json")


def unix_lines(text: str) -> str:
    """Replace the line ends that browsers send from a text area."""
    return text.replace("\r\n", "\n")


def write_number(number: float) -> str:
    """Write 1e-06 as 1e-6 and 1.0 as 1, without losing digits."""
    if number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    mantissa, _, exponent = repr(number).partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def explain(field: SchemaField, error: Mapping[str, Any]) -> str:
    """Say what pydantic refuses of a field's value, with the value."""
    value = error["input"]
    if value in ("", None):
        return f"{field.title} is empty. Its default is {field.default_text}."
    demand = _demand(error)
    if demand is None:
        return f"{field.title}: {message_of(error)}. The value was {quote(value)}."
    if field.may_be_auto:
        demand += " or auto"
    return f"{field.title} must be {demand}; got {quote(value)}."


def message_of(error: Mapping[str, Any]) -> str:
    """Return pydantic's own message, or that of the validator which raised it."""
    cause = error.get("ctx", {}).get("error")
    return str(cause) if cause is not None else str(error["msg"])


def quote(value: Any) -> str:
    text = str(value).encode(errors="replace").decode()  # without half surrogates
    return f"“{text[:60]}…”" if len(text) > 60 else f"“{text}”"


def _demand(error: Mapping[str, Any]) -> str | None:
    context = error.get("ctx", {})
    match error["type"]:
        case "int_parsing" | "int_type" | "int_from_float" | "int_parsing_size":
            return "a whole number"
        case "float_parsing" | "float_type" | "finite_number":
            return "a number, such as 0.5 or 1e-6"
        case "bool_parsing" | "bool_type":
            return "on or off"
        case "greater_than_equal":
            return f"at least {_plain(context['ge'])}"
        case "greater_than":
            return f"above {_plain(context['gt'])}"
        case "less_than_equal":
            return f"at most {_plain(context['le'])}"
        case "less_than":
            return f"below {_plain(context['lt'])}"
        case "literal_error":
            return f"one of {context['expected']}"
    return None


def _plain(bound: float) -> str:
    return f"{int(bound):,}" if float(bound).is_integer() else f"{bound:g}"
