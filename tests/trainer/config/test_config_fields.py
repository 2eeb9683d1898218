"""What stands with each field: label, help, unit, and when it has no effect."""

import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import ValidationError

from trainer.config import RunConfig, leaves, parts_of, read_about

FIELDS = dict(leaves(RunConfig))
# Of the reward's composition; the form works them out.
OF_RECIPES = {"recipe.combine", "recipe.is_one_rule"}
CONDITIONS = [
    (path, reason, when)
    for path, field in FIELDS.items()
    for reason, when in read_about(field).get("no_effect", {}).items()
]


def test_every_field_has_a_label_and_a_sentence_of_help():
    parts = [RunConfig.model_fields[name].title for name in parts_of(RunConfig)]

    assert all(parts)
    assert [
        path for path, f in FIELDS.items() if not f.title or not f.description
    ] == []


def test_a_count_has_a_unit():
    no_counts = {"seed", "model.lora_rank"}
    counts = {p for p, f in FIELDS.items() if int in set(_types(f.annotation))}

    units = {path for path in counts if read_about(FIELDS[path]).get("unit")}
    assert units == counts - no_counts


def test_a_unit_that_the_help_names_is_the_fields():
    units = {read_about(field).get("unit") for field in FIELDS.values()}
    named = {
        path: counted[1]
        for path, field in FIELDS.items()
        if (counted := re.search(r"(?:this|so) many (\w+)", field.description or ""))
        and counted[1] in units
    }

    assert named
    assert named == {path: read_about(FIELDS[path]).get("unit") for path in named}


def test_main_settings_are_numbered():
    main = [read_about(field).get("main") for field in FIELDS.values()]

    numbers = sorted(number for number in main if number)
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize(("path", "reason", "when"), CONDITIONS)
def test_a_condition_asks_others_for_values_that_they_can_have(path, reason, when):
    assert when
    assert path not in when
    assert set(when) <= set(FIELDS) | OF_RECIPES
    for asked in set(when) - OF_RECIPES:
        part, _, name = asked.rpartition(".")
        model = parts_of(RunConfig)[part]
        for value in when[asked]:
            try:
                model.model_validate({name: value})
            except ValidationError as error:
                faults = [fault["loc"] for fault in error.errors()]
                assert (name,) not in faults, (asked, value)


def _types(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is not Literal:
        yield annotation
        for part in get_args(annotation):
            yield from _types(part)
