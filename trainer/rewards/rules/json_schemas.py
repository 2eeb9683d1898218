"""Validates a document with a JSON Schema, in bounded time and without network.

jsonschema validates; slow or external parts are replaced: patterns use RE2, references
stay inside the schema, and steps are counted. Both sides can be expensive: a schema
that refers to itself twice takes 2^n steps for a document of n levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from trainer.rewards.rule import compile_pattern, refuse_bad_pattern
from trainer.rewards.strict_json import JsonArray, JsonObject, NotJson, read_json

MAX_STEPS = 20_000  # each takes up to 10 µs
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_AT_THE_TOP = ("$schema", "$id")
# They look at everything again that other keywords have looked at already.
_NOT_KNOWN = ("unevaluatedItems", "unevaluatedProperties", "$dynamicRef")
# One of each type, which every part of a new schema is tried with.
_PROBES = (None, True, 1, "", JsonArray(), JsonObject())

Keyword = Callable[[Any, Any, Any, Any], "Iterable[ValidationError] | None"]


class _TooLong(Exception):
    """The check takes more steps than there are."""


class _Steps:
    def __init__(self) -> None:
        self.left = MAX_STEPS

    def take(self, number: int) -> None:
        self.left -= number
        if self.left < 0:
            raise _TooLong


_steps: ContextVar[_Steps] = ContextVar("steps")


def accepts(schema: str, document: Any) -> bool:
    """Return whether a document of `read_json` fits; a check that takes too long says
    no.
    """
    try:
        return _fits(_validator(schema), document)
    except (_TooLong, RecursionError):
        return False


def refuse_bad_schema(schema: str) -> str:
    """Return a pydantic validator: the schema as it is, when it can be checked by."""
    _validator(schema)
    return schema


@lru_cache(maxsize=64)
def _validator(text: str) -> Any:
    schema = _read(text)
    try:
        # Without a checker of formats: patterns are RE2's, not Python's.
        Draft202012Validator.check_schema(schema, format_checker=None)
    except SchemaError as error:
        where = "/".join(str(step) for step in error.absolute_path) or "the top level"
        raise ValueError(
            f"Not a valid JSON Schema of draft 2020-12, at {where}: "
            f"{error.message[:200]}."
        ) from error
    resource = DRAFT202012.create_resource(schema)
    parts = list(_parts(resource))
    for part in parts:
        # By $schema the library would take its own keywords instead of ours.
        for keyword in (*_NOT_KNOWN, *(() if part is schema else _AT_THE_TOP)):
            if keyword in part:
                raise ValueError(
                    f"{keyword} is not supported"
                    + (" inside a schema" if keyword in _AT_THE_TOP else "")
                    + ". Use additionalProperties, items, or $ref with $defs instead."
                )
        patterns = [*part.get("patternProperties", {})]
        if "pattern" in part:
            patterns.append(part["pattern"])
        for pattern in patterns:
            refuse_bad_pattern(pattern)
    _refuse_other_references(resource, parts)
    validator = _Validator(schema, registry=Registry())
    try:
        for part in parts:
            for probe in _PROBES:
                _fits(validator.evolve(schema=part), probe)
    except (_TooLong, RecursionError) as error:
        raise ValueError(
            "The schema recurses infinitely, or is too large to check. Every "
            "cycle of references must pass through properties or items."
        ) from error
    return validator


def _read(text: str) -> Any:
    try:
        schema = read_json(text)
    except NotJson as error:
        raise ValueError(f"The schema is not JSON: {error}") from error
    if isinstance(schema, dict):
        draft = schema.pop("$schema", _DRAFT)
        if not isinstance(draft, str) or draft.rstrip("#") != _DRAFT:
            raise ValueError(
                f'The schema has the draft "{draft}"; only {_DRAFT} is supported.'
            )
        schema.pop("$id", None)
    return schema


def _parts(resource: Any) -> Iterator[JsonObject]:
    """Yield the schema and every schema inside it that is an object."""
    if isinstance(resource.contents, JsonObject):
        yield resource.contents
        for inner in resource.subresources():
            yield from _parts(inner)


def _refuse_other_references(resource: Any, parts: Sequence[JsonObject]) -> None:
    """Refuse references to what is no schema that was looked at."""
    resolver = Registry().resolver_with_root(resource)
    ids = {id(part) for part in parts}
    for reference in {part["$ref"] for part in parts if "$ref" in part}:
        try:
            contents = resolver.lookup(reference).contents
        except Unresolvable:
            contents = None
        if not reference.startswith("#") or (
            id(contents) not in ids and not isinstance(contents, bool)
        ):
            raise ValueError(
                f'The schema refers to "{reference}", which is not part of it. Other '
                "documents are not fetched: copy the part into $defs, and refer to it "
                "as #/$defs/ and its name."
            )


def _fits(validator: Any, document: Any) -> bool:
    token = _steps.set(_Steps())
    try:
        return bool(validator.is_valid(document))
    finally:
        _steps.reset(token)


def _counted(keyword: Keyword) -> Keyword:
    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        _steps.get().take(1 + _size(instance))
        return keyword(validator, value, instance, schema)

    return check


def _size(instance: Any) -> int:
    """Steps for its length: items are gone through, texts printed when refused."""
    if isinstance(instance, dict | list):
        return len(instance) // 2
    return len(instance) // 1_000 if isinstance(instance, str) else 0


def _pattern(
    validator: Any, pattern: str, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not compile_pattern(pattern).search(instance):
        yield ValidationError("does not match its pattern")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for pattern, part in patterns.items():
            for name, value in instance.items():
                if compile_pattern(pattern).search(name):
                    yield from validator.descend(value, part)


def _additional_properties(
    validator: Any, part: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        patterns = [compile_pattern(it) for it in schema.get("patternProperties", {})]
        for name, value in instance.items():
            is_named = name in schema.get("properties", {})
            if not is_named and not any(pattern.search(name) for pattern in patterns):
                yield from validator.descend(value, part)


def _unique_items(
    validator: Any, is_asked: bool, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    items = instance if is_asked and isinstance(instance, list) else ()
    if len({_canonical(item) for item in items}) < len(items):
        yield ValidationError("has a duplicate item")


def _canonical(item: Any) -> Any:
    """Return the same for equal items: 1 and 1.0 are, 1 and true are not."""
    _steps.get().take(1)
    if isinstance(item, dict):
        return ("object", frozenset((k, _canonical(v)) for k, v in item.items()))
    if isinstance(item, list):
        return ("array", tuple(_canonical(value) for value in item))
    if isinstance(item, int | float) and not isinstance(item, bool):
        # As text: numbers can be chosen so that their hashes are the same.
        return ("number", str(int(item)) if item == int(item) else repr(item))
    return (type(item).__name__, item)


_Validator = extend(
    Draft202012Validator,
    {
        name: _counted(keyword)
        for name, keyword in {
            **Draft202012Validator.VALIDATORS,
            "pattern": _pattern,
            "patternProperties": _pattern_properties,
            "additionalProperties": _additional_properties,
            "uniqueItems": _unique_items,
        }.items()
        if name not in _NOT_KNOWN
    },
)
