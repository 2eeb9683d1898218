"""How settings are grouped and worded on the launch form."""

from dashboard.runs.config.fields import advanced_parts, all_fields, main_fields


def test_every_setting_is_on_the_form_once():
    advanced = [
        field.path
        for part in advanced_parts()
        for group in part.groups
        for field in group.fields
    ]

    main = [field.path for field in main_fields()]
    assert sorted([*main, *advanced]) == sorted(all_fields())


def test_the_help_of_a_main_field_fits_two_lines_of_a_phone():
    assert max(len(field.help) for field in main_fields()) <= 42


def test_a_section_begins_with_the_field_that_names_it():
    for part in advanced_parts():
        for group in part.groups:
            sections = [field.about.get("section", "") for field in group.fields]
            assert sections == [group.title, *[""] * (len(sections) - 1)]


def test_every_choice_has_a_meaning():
    for field in all_fields().values():
        texts = [text for text, _ in field.options] if field.kind == "choice" else []
        assert sorted(field.about.get("choices", {})) == sorted(texts), field.path


def test_a_stop_text_may_have_lines() -> None:
    field = all_fields()["rollout.stop"]

    assert field.read(field.write(["\n\n", "</answer>"])) == ["\n\n", "</answer>"]
    assert field.read("") == []


def test_a_choice_shows_its_value_before_its_meaning():
    for field in all_fields().values():
        if field.kind == "choice":
            names = [text.split(":")[0] for _, text in field.options]
            assert names == [value or "none" for value, _ in field.options], field.path
