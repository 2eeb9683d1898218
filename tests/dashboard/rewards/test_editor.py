"""Composing a recipe: with fields, with buttons, as JSON."""

import html
import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dashboard.rewards.models import RecipeVersion, RewardRecipe
from dashboard.rewards.recipe_editor import RecipeDraft
from dashboard.rewards.recipe_text import read_recipe, write_json
from dashboard.rewards.rule_editor import param_fields, write_params
from dashboard.rewards.services import save_recipe_version
from tests.dashboard.analysis.probes.factories import make_version
from tests.dashboard.rewards.editor import fields
from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe

NEW = "/alpha/rewards/new"
CHECK = "/alpha/rewards/check"
TWO = (("numeric_answer", {}), ("format_tags", {"weight": "0.2"}))


def test_a_new_page_starts_empty_or_with_the_rule_of_a_dataset(alice_client, team):
    version = make_version(team)

    empty = alice_client.get(NEW)
    suggested = alice_client.get(NEW, {"dataset": version.pk})
    other = alice_client.get(NEW, {"dataset": version.pk + 1})

    assert empty.context["draft"].rules == []
    assert empty.context["suggestion"].kind == "numeric_answer"
    kinds = [rule.kind for rule in suggested.context["draft"].rules]
    assert kinds == ["numeric_answer", "format_tags"]
    assert suggested.context["chosen"]["dataset"] == version
    assert suggested.context["draft"].formula == "1·numeric_answer + 0.2·format_tags"
    assert other.context["draft"].rules == []


def test_a_template_replaces_the_rules_and_brings_a_sample(alice_client):
    headers = {"HX-Request": "true", "HX-Target": "editor"}
    data = fields(action="template:code", source="own", **{"own-prompt": "mine"})

    answer = alice_client.post(NEW, data, headers=headers)

    assert [rule.kind for rule in answer.context["draft"].rules] == ["code_tests"]
    own = answer.context["bench"].groups[0].own
    assert "tests" in json.loads(own["columns"])
    assert "<html" not in answer.text


def test_saving_makes_a_version_of_exactly_these_rules(alice_client):
    data = fields(
        ("numeric_answer", {"params-tolerance": "0.01", "params-source": "boxed"}),
        ("format_tags", {"weight": "-0.25", "name": "shape"}),
        action="save",
        name="Sums",
        description="For sums.",
    )

    answer = alice_client.post(NEW, data)

    version = RecipeVersion.objects.get()
    assert answer["Location"] == f"/alpha/rewards/{version.recipe_id}/"
    assert version.recipe.description == "For sums."
    first, second = version.spec["rules"]
    assert first["params"]["tolerance"] == 0.01
    assert first["params"]["source"] == "boxed"
    assert (second["name"], second["weight"]) == ("shape", -0.25)


def test_every_rule_can_be_added_and_saved(alice_client):
    """All of them in one recipe."""
    rules = []
    for kind, rule in RULES.items():
        given = rule.example_pass.params
        texts = write_params(kind, given)
        rules.append((kind, {f"params-{name}": texts[name] for name in given}))

    shown = alice_client.post(NEW, fields(*rules, action="show"))
    answer = alice_client.post(NEW, fields(*rules, action="save", name="x"))

    assert [rule.title for rule in RULES.values() if rule.title not in shown.text] == []
    assert answer.status_code == 302, answer.context["draft"].rules
    spec = RecipeVersion.objects.get().spec
    assert [rule["kind"] for rule in spec["rules"]] == list(RULES)


def test_an_invalid_field_has_an_error_and_nothing_is_saved(alice_client):
    for rule, fragment in (
        (("length", {"weight": "x"}), "got 'x'"),
        (("length", {"weight": ""}), "got ''"),
        (("length", {"weight": "nan"}), "finite"),
        (("length", {"weight": "2000"}), "got '2000'"),
        (("length", {"name": "No Spaces"}), "Must match"),
        (("length", {"params-minimum": "-1"}), "got '-1'"),
        (("length", {"params-minimum": "5000"}), "5000"),
        (("length", {"params-unit": "bytes"}), "Choose an option"),
        (("regex", {"params-pattern": "(", "name": "regex"}), "("),
        (("regex", {}), "required"),
        (("reasoning_gym", {}), "Choose an option"),
        (("numeric_answer", {"params-tolerance": "1e999"}), "finite"),
    ):
        answer = alice_client.post(NEW, fields(rule, action="save", name="x"))

        assert answer.status_code == 422
        (draft,) = answer.context["draft"].rules
        errors = [error for errors in draft.errors.values() for error in errors]
        assert len(errors) == 1, errors
        assert fragment in errors[0]
        assert "field-error" in answer.text
    assert RewardRecipe.objects.count() == 0


def test_a_refused_save_lists_the_invalid_rules(alice_client):
    rules = (("length", {}), ("regex", {"name": "digits"}))

    page = alice_client.post(NEW, fields(*rules, action="save", name="x")).text

    assert "marked fields: digits" in page


def test_a_check_removes_the_refusal_once_all_is_valid(alice_client):
    wrong = fields(("regex", {"name": "digits"}), refused="digits", name="x")
    right = fields(("length", {}), refused="digits", name="x")

    assert 'id="refused"' not in alice_client.post(CHECK, wrong).text
    assert "notice-error" not in alice_client.post(CHECK, right).text
    assert 'id="refused"' in alice_client.post(CHECK, right).text
    unnamed = alice_client.post(CHECK, {**right, "name": ""})
    assert unnamed.context["is_refused"]
    headers = {"HX-Request": "true", "HX-Target": "editor"}
    removed = alice_client.post(NEW, right, headers=headers)
    assert removed.context["is_refused"] is False


def test_a_program_that_a_browser_sends_back_untouched_is_the_default(alice_client):
    source = write_params("python_function", {})["source"]
    assert "\n" in source
    sent = {"params-source": source.replace("\n", "\r\n")}

    page = alice_client.post(NEW, fields(("python_function", sent), action="show")).text

    assert "from the default" not in page


def test_rules_of_one_name_or_none_are_refused(alice_client):
    for rules in ((("length", {}), ("length", {})), ()):
        answer = alice_client.post(NEW, fields(*rules, action="save", name="x"))

        assert answer.status_code == 422
        assert answer.context["draft"].recipe is None
    assert RewardRecipe.objects.count() == 0


def test_a_name_is_needed_and_free(alice_client, team):
    recipe = Recipe.model_validate({"rules": [{"name": "a", "kind": "length"}]})
    save_recipe_version(team=team, name="Taken", recipe=recipe, user=None)

    for name in ("", "Taken", "x" * 81):
        answer = alice_client.post(NEW, fields(*TWO, action="save", name=name))

        assert answer.status_code == 422
        assert answer.context["form"].errors["name"]


def test_buttons_change_the_rules_and_keep_the_input(alice_client):
    data = fields(*[("length", {"name": n, "weight": "7"}) for n in "abc"])
    for action, names in {
        "up:1": "b a c",
        "down:1": "a c b",
        "up:0": "a b c",
        "down:2": "a b c",
        "remove:1": "a c",
        "remove:9": "a b c",
        "up:x": "a b c",
        "move:2:0": "c a b",
        "move:0:2": "b c a",
        "move:0:9": "a b c",
        "up:" + "9" * 5_000: "a b c",
        "add:length": "a b c length",
        "add:nothing": "a b c",
        "nonsense": "a b c",
    }.items():
        answer = alice_client.post(NEW, {**data, "action": action, "name": "typed"})

        rules = answer.context["draft"].rules
        assert " ".join(rule.name for rule in rules) == names, action
        assert {rule.weight for rule in rules if len(rule.name) == 1} == {"7"}
        assert 'value="typed"' in answer.text
    assert RewardRecipe.objects.count() == 0


def test_a_second_rule_of_a_kind_gets_a_name_of_its_own(alice_client):
    data = fields(("length", {}), action="add:length")

    answer = alice_client.post(NEW, data)

    assert [r.name for r in answer.context["draft"].rules] == ["length", "length_2"]


def test_fields_become_json(alice_client):
    data = fields(("length", {"params-maximum": "12"}))

    page = alice_client.post("/alpha/rewards/check", data)

    tree = json.loads(page.context["draft"].json_text)
    assert tree["rules"][0]["params"]["maximum"] == 12
    assert "hx-swap-oob" in page.text


def test_json_becomes_fields(alice_client):
    tree = {"rules": [{"name": "short", "kind": "length", "params": {"maximum": 9}}]}

    answer = alice_client.post(
        NEW, fields(*TWO, action="read_json", json=json.dumps(tree))
    )

    (rule,) = answer.context["draft"].rules
    assert (rule.name, rule.texts["maximum"]) == ("short", "9")


def test_invalid_json_is_reported_and_the_fields_stay(alice_client):
    def of_rule(rest: str) -> str:
        return '{"rules": [{"name": "a", "kind": ' + rest + "}]}"

    for text, fragment in (
        ("{", "Invalid JSON"),
        ("[]", "got []"),
        ("", "Invalid JSON"),
        ("[" * 100_000, "deep"),
        ('{"rules": []}', "at least one"),
        (of_rule('"eval"'), '"eval"'),
        (of_rule('"length", "weight": NaN'), "finite"),
        ('{"rules": [{"name": "A", "kind": "length"}]}', "rules.0.name"),
        (of_rule('"length", "params": {"mx": 1}'), "no such parameter"),
        (of_rule('"length", "code": "1"'), "code"),
    ):
        answer = alice_client.post(NEW, fields(*TWO, action="read_json", json=text))

        draft = answer.context["draft"]
        assert fragment in "\n".join(draft.json_errors)
        assert len(draft.rules) == 2
        assert draft.json_text == text


def test_a_recipe_survives_fields_and_json():
    for kind, one in RULES.items():
        params = dict(one.example_pass.params)
        rule = {"name": "x", "kind": kind, "weight": 0.123456789, "params": params}
        recipe = Recipe.model_validate({"rules": [rule]})

        assert RecipeDraft.of(recipe).validate() == recipe, kind
        assert read_recipe(write_json(recipe)) == recipe, kind


COMPOSED = {
    "gate_rule": "length",
    "gate_at_least": "0.5",
    "gate_otherwise": "not_applicable",
    "clip_low": "-0.5",
    "clip_high": "1",
    "schedule": "to 0.25 at step 50",
}


def test_gates_clips_and_schedules_are_fields(alice_client):
    data = fields(("length", {}), ("regex", COMPOSED | {"params-pattern": "a"}))

    alice_client.post(
        NEW,
        data | {"combine": "minimum", "clip_high": "2", "action": "save", "name": "x"},
    )

    spec = RecipeVersion.objects.get().spec
    assert spec["rules"][1]["only_if"] == {
        "rule": "length",
        "at_least": 0.5,
        "otherwise": "not_applicable",
    }
    assert spec["rules"][1]["clip"] == {"low": -0.5, "high": 1.0}
    assert spec["rules"][1]["schedule"]["points"] == [{"step": 50, "weight": 0.25}]
    assert (spec["combine"], spec["clip"]) == ("minimum", {"high": 2.0})
    assert set(spec["rules"][0]) == {"name", "kind", "weight", "params"}


def test_a_wrong_term_is_answered(alice_client):
    for changes, fragment in (
        ({"gate_rule": "length", "gate_at_least": "x"}, "got &#x27;x&#x27;"),
        ({"gate_rule": "other"}, "is not another rule"),
        ({"gate_rule": "No"}, "Must match"),
        ({"clip_low": "2", "clip_high": "1"}, "got 2 and 1"),
        ({"clip_low": "much"}, "got &#x27;much&#x27;"),
        ({"schedule": "to 1 at stop 3"}, "at &quot;to 1 at stop 3&quot;"),
        ({"schedule": "to 1 at step 1"}, "equal to 2"),
    ):
        data = fields(("length", {}), ("tag_count", changes), action="save", name="x")

        answer = alice_client.post(NEW, data)

        assert answer.status_code == 422
        assert answer.text.count(fragment) == 1, fragment
    assert RewardRecipe.objects.count() == 0


def test_the_formula_follows_the_fields(alice_client):
    data = fields(("length", {}), ("tag_count", {"gate_rule": "length"}))

    page = alice_client.post("/alpha/rewards/check", data)

    assert page.context["draft"].formula == "1·length + 1·tag_count if length ≥ 1"
    assert "only_if&quot;" in page.text


def test_the_fields_follow_the_formula(alice_client):
    rules = (("length", {"params-maximum": "9"}), ("tag_count", COMPOSED))
    text = "tag_count if length >= 0.5 - 0.2*length + format_tags, clipped to [0, 2]"

    answer = alice_client.post(NEW, fields(*rules, action="read_formula", formula=text))

    draft = answer.context["draft"]
    assert [(rule.name, rule.weight) for rule in draft.rules] == [
        ("tag_count", "1"),
        ("length", "-0.2"),
        ("format_tags", "1"),  # a rule's kind that was not there yet
    ]
    assert draft.rules[0].term == {"gate_rule": "length", "gate_at_least": "0.5"}
    assert draft.rules[1].texts["maximum"] == "9"
    assert draft.clip == {"clip_low": "0", "clip_high": "2"}
    assert draft.formula == (
        "1·tag_count if length ≥ 0.5 − 0.2·length + 1·format_tags, clipped to [0, 2]"
    )


def test_a_formula_that_cannot_be_read_changes_nothing(alice_client):
    for text, fragment in (
        ("2·length +", '"+"'),
        ("2·length tag_count", '"tag_count"'),
        ("2·length + other", '"other"'),
        ("2·length", "tag_count"),
        ("length + tag_count + length", '"length" twice'),
        ("product(length tag_count)", '"tag_count"'),
        ("", "1·answer"),
    ):
        data = fields(("length", {}), ("tag_count", {}), formula=text)

        answer = alice_client.post(NEW, data | {"action": "read_formula"})

        draft = answer.context["draft"]
        assert fragment in draft.formula_error, text
        assert draft.formula == text
        assert [rule.weight for rule in draft.rules] == ["1", "1"]


def test_a_composed_recipe_is_edited_as_it_is(alice_client, team):
    data = fields(("length", {}), ("tag_count", COMPOSED), action="save", name="x")
    alice_client.post(NEW, data)
    version = RecipeVersion.objects.get()

    page = alice_client.get(f"/alpha/rewards/{version.recipe_id}/edit")

    assert page.context["draft"].recipe.model_dump(mode="json") == version.spec
    shown = alice_client.get(f"/alpha/rewards/{version.recipe_id}/").content.decode()
    assert page.context["draft"].formula in html.unescape(shown)


def test_phrases_are_written_line_by_line(alice_client):
    typed = {"params-phrases": " sorry\r\n\r\nthank you"}
    data = fields(("contains", typed), action="save", name="x")

    alice_client.post(NEW, data)

    rule = RecipeVersion.objects.get().spec["rules"][0]
    assert rule["params"]["phrases"] == [" sorry", "thank you"]


def test_settings_of_another_rule_are_an_object_or_refused(alice_client):
    refused = alice_client.post(
        NEW, fields(("cosine_length", {"params-answer_params": "{tag}"}), action="save")
    )
    taken = alice_client.post(
        NEW,
        fields(
            ("cosine_length", {"params-answer_params": '{"tag": "final"}'}),
            action="save",
            name="x",
        ),
    )

    assert "&#x27;{tag}&#x27;" in refused.content.decode()
    assert taken.status_code == 302
    rule = RecipeVersion.objects.get().spec["rules"][0]
    assert rule["params"]["answer_params"]["tag"] == "final"


def test_every_parameter_has_help_and_an_input_of_its_own():
    every = [(kind, field) for kind in RULES for field in param_fields(kind)]

    assert [(k, f.path) for k, f in every if not f.help or f.kind == "json"] == []


def test_an_edited_recipe_is_its_next_version(alice_client, team):
    alice_client.post(NEW, fields(*TWO, action="save", name="Sums"))
    recipe = RewardRecipe.objects.get()
    url = f"/alpha/rewards/{recipe.pk}/edit"
    assert alice_client.get(url).context["draft"].rules[1].weight == "0.2"

    alice_client.post(url, fields(*TWO, ("length", {}), action="save"))

    assert [v.number for v in recipe.versions.order_by("number")] == [1, 2]


def test_saving_without_a_change_makes_no_version(alice_client):
    alice_client.post(NEW, fields(*TWO, action="save", name="Sums"))
    recipe = RewardRecipe.objects.get()

    answer = alice_client.post(
        f"/alpha/rewards/{recipe.pk}/edit", fields(*TWO, action="save"), follow=True
    )

    assert "version 2" not in answer.text
    assert recipe.versions.count() == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.dictionaries(
        st.sampled_from(
            [
                "kind",
                "name",
                "weight",
                "params-pattern",
                "params-match",
                "params-x",
                *COMPOSED,
            ]
        ),
        st.text(max_size=30),
    ),
    action=st.sampled_from(["save", "add", "up:0", "remove:0", "read_json", "try"])
    | st.text(max_size=12),
    name=st.text(max_size=20),
    text=st.text(max_size=40),
)
def test_every_post_is_answered(alice_client, changes, action, name, text):
    data = fields(("regex", changes), action=action, name=name, json=text)

    assert alice_client.post(NEW, data).status_code in (200, 302, 422)
