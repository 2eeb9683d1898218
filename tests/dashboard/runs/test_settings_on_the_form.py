"""How settings are grouped and worded on the launch form."""

from __future__ import annotations

from dashboard.runs.config.choice_labels import WORDS
from dashboard.runs.config.field_groups import GROUPS
from dashboard.runs.config.fields import MAIN, advanced_parts, all_fields


def test_every_setting_stands_on_the_form_once() -> None:
    advanced = [
        field.path
        for part in advanced_parts()
        for group in part.groups
        for field in group.fields
    ]

    assert sorted([*MAIN, *advanced]) == sorted(all_fields())


def test_a_part_that_has_groups_leaves_no_setting_out_of_them() -> None:
    for part in advanced_parts():
        if part.name in GROUPS:
            last = part.groups[-1]
            assert not last.fields, [field.path for field in last.fields]


def test_groups_name_settings_that_there_are() -> None:
    named = [
        f"{part}.{name}"
        for part, groups in GROUPS.items()
        for _, names in groups
        for name in names
    ]

    assert set(named) <= set(all_fields())
    assert len(named) == len(set(named))


def test_every_choice_says_what_it_means() -> None:
    options = {
        path: [text for text, _ in field.options]
        for path, field in all_fields().items()
        if field.kind == "choice"
    }

    assert {path: sorted(words) for path, words in WORDS.items()} == {
        path: sorted(texts) for path, texts in options.items()
    }


def test_a_choice_keeps_its_name_before_its_words() -> None:
    for field in all_fields().values():
        if field.kind == "choice":
            names = [text.split(":")[0] for _, text in field.options]
            assert names == [value or "none" for value, _ in field.options], field.path
