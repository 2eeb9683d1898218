"""A row's tests for code, in the forms that datasets have them in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.rewards.sample import NotApplicable, Sample, quote

MAX_TEXT = 262_144  # characters of the tests that are used
_MAX_JSON = 8 * 1024**2
_INPUTS, _OUTPUTS = ("input", "stdin", "inputs"), ("output", "stdout", "outputs")


@dataclass(frozen=True, kw_only=True)
class Asserts:
    """Python text with asserts; several texts are a test each."""

    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Programs:
    """What a program reads, and what it is to print."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Calls:
    """Arguments and results of one function each, as JSON values."""

    calls: tuple[tuple[str, list[Any], Any], ...]


Tests = Asserts | Programs | Calls


def read_tests(sample: Sample, column: str, *, most: int) -> Tests:
    """The first tests of a row, so many at most.

    They are cut before anything is read of them: a row may hold thousands.

    Raises:
        NotApplicable: there are none, or in no form that is known.
    """
    value = _decoded(sample.columns.get(column), column, sample)
    tests = _tests(value, most)
    if tests is None:
        raise NotApplicable(
            f'Column "{column}" has no tests that can be read; this row has '
            f"{quote(value)}. Give text with asserts, a list of such texts, or a list "
            'of objects with "input" and "output".'
        )
    return tests


def _decoded(value: Any, column: str, sample: Sample) -> Any:
    """The column, or what its JSON text says."""
    if value is None:
        there = ", ".join(sorted(sample.columns)) or "none"
        raise NotApplicable(
            f'The row has no column "{column}" (its columns: {there}). Name the right '
            "column in the rule, or take it along when mapping the dataset."
        )
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        if len(value) > _MAX_JSON:
            raise NotApplicable(
                f'Column "{column}" has {len(value):,} characters of tests; '
                f"{_MAX_JSON:,} are read at most. Keep fewer tests in the row."
            )
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _tests(value: Any, most: int) -> Tests | None:
    if isinstance(value, str):
        return _asserts([value])
    if isinstance(value, Mapping):
        value = _listed(value, most)
    if not isinstance(value, Sequence) or not value:
        return None
    first = value[:most]
    if all(isinstance(each, str) for each in first):
        return _asserts(first)
    if not all(isinstance(each, Mapping) for each in first):
        return None
    return _cases(first)


def _asserts(texts: Sequence[str]) -> Asserts | None:
    size = sum(map(len, texts))
    if size > MAX_TEXT:
        raise NotApplicable(
            f"The tests have {size:,} characters; {MAX_TEXT:,} are read at most. Lower "
            "the rule's most tests, or keep fewer in the row."
        )
    return Asserts(texts=tuple(texts)) if any(map(str.strip, texts)) else None


def _listed(value: Mapping[str, Any], most: int) -> Any:
    """{"inputs": […], "outputs": […]} as a list of objects."""
    inputs, outputs = _first(value, _INPUTS), _first(value, _OUTPUTS)
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        return None
    name = value.get("fn_name")
    pairs = zip(inputs[:most], outputs[:most], strict=False)
    return [{"input": one, "output": other, "fn_name": name} for one, other in pairs]


def _cases(cases: Sequence[Mapping[str, Any]]) -> Tests | None:
    pairs = [(_first(case, _INPUTS), _first(case, _OUTPUTS)) for case in cases]
    names = [case.get("fn_name") for case in cases]
    if all(isinstance(name, str) and name.isidentifier() for name in names):
        return Calls(
            calls=tuple(
                (str(name), _arguments(given), wanted)
                for name, (given, wanted) in zip(names, pairs, strict=True)
            )
        )
    texts = [(_text(given), _text(wanted)) for given, wanted in pairs]
    if any(given is None or wanted is None for given, wanted in texts):
        return None
    return Programs(pairs=tuple((str(given), str(wanted)) for given, wanted in texts))


def _arguments(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _text(value: Any) -> str | None:
    """Text, or its lines."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return value if isinstance(value, str) else None


def _first(value: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((value[name] for name in names if name in value), None)
