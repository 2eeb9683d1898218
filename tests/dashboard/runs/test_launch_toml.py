"""The launch form as TOML, and TOML as the form."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dashboard.rewards.models import RecipeVersion, RewardRecipe
from dashboard.runs.config.fields import all_fields
from dashboard.runs.config.toml import MAX_PROBLEMS
from dashboard.runs.launch.draft import Choices, LaunchDraft
from dashboard.runs.launch.starts import Start, default_start, start_of_preset
from dashboard.runs.launch.toml import apply_toml, write_form
from tests.dashboard.runs.launching import NUMERIC, make_dataset, make_recipe
from tests.dashboard.runs.test_clone import _fields
from trainer.presets.preset import preset_names


def _form(start: Start, *specs: Any) -> LaunchDraft:
    recipes = [
        RecipeVersion(pk=n, number=1, spec=spec, recipe=RewardRecipe(name=f"r{n}"))
        for n, spec in enumerate(specs, 1)
    ]
    choices = Choices(starters=[], datasets=[], recipes=recipes)
    form = LaunchDraft.from_start(start, choices, "brave-otter")
    form.model_other = "org/model"
    form.recipe = "1"
    return form


@given(
    name=st.sampled_from(preset_names()),
    scaled=st.booleans(),
    rate=st.floats(1e-9, 1e-2),
    size=st.integers(2, 64),
    temperature=st.floats(0.1, 2),
    # blanks alone are no prompt, on the form and in TOML
    prompt=st.none() | st.text("aä\"'\\\n\t#= []\u007f☃").filter(str.strip),
    is_masked=st.booleans(),
)
def test_every_preset_goes_to_toml_and_back(
    name, scaled, rate, size, temperature, prompt, is_masked
):
    start = start_of_preset(name, scaled=scaled)
    specs = [one for one in (start.recipe or NUMERIC, start.step_recipe) if one]
    form = _form(start, *specs)
    form.texts |= {
        "optim.learning_rate": all_fields()["optim.learning_rate"].write(rate),
        "rollout.group_size": str(size),
        "rollout.temperature": all_fields()["rollout.temperature"].write(temperature),
        "data.system_prompt": prompt or "",
        "loss.mask_truncated": "on" if is_masked else "",
    }
    other = _form(default_start(), *specs)

    draft = apply_toml(other, write_form(form))

    if not draft.problems:  # else these settings do not go together
        assert other.texts == form.texts
        assert other.phases == form.phases
        assert (other.recipe, other.step_recipe) == (form.recipe, form.step_recipe)
    else:
        assert all(problem.key == "" for problem in draft.problems), draft.problems


def test_a_preset_as_it_is_has_no_problem_as_toml():
    for name in preset_names():
        start = start_of_preset(name, scaled=False)
        specs = [one for one in (start.recipe or NUMERIC, start.step_recipe) if one]
        other = _form(default_start(), *specs)

        draft = apply_toml(other, write_form(_form(start, *specs)))

        assert not draft.problems, name
        assert other.texts == start.texts, name


def test_a_wrong_value_is_named_with_key_value_and_remedy():
    text = "seed = 1\n\n[optim]\n# learning_rate\nnum_steps = 5\nlearning_rate = 'x'\n"
    form = _form(default_start(), NUMERIC)

    draft = apply_toml(form, text)

    (problem,) = draft.problems
    assert problem.key == "optim.learning_rate"
    assert str(problem).startswith("optim.learning_rate = “x”: ")
    assert form.texts == default_start().texts


def test_an_unknown_key_has_a_suggestion():
    form = _form(default_start(), NUMERIC)

    typo = apply_toml(form, "[optim]\nlerning_rate = 1e-6\n")
    lost = apply_toml(form, "[loss]\ntemperature = 1.0\n")

    assert " optim.learning_rate" in typo.problems[0].sentence
    assert " rollout.temperature" in lost.problems[0].sentence


def test_conflicting_settings_are_named():
    text = "[rollout]\ngroup_size = 1\n"

    draft = apply_toml(_form(default_start(), NUMERIC), text)

    assert "rollout.group_size" in str(draft.problems[0])


def test_unstorable_toml_is_refused():
    for text, code in (
        ("a." * 40 + "b = 1", "toml.long_key"),
        ('[x]\ny = { "\\"" . ' + "'a' . " * 40 + "b = 1 }", "toml.long_key"),
        ("seed = 0x" + "f" * 9_000, "settings.number_too_large"),
        ("seed = " + "[" * 25 + "]" * 25, "settings.too_deep"),
        ("seed = " + "[" * 9_000, "toml.invalid"),
        ('data.system_prompt = "a\\u0000b"', "settings.bad_character"),
    ):
        draft = apply_toml(_form(default_start(), NUMERIC), text)

        assert draft.problems[0].code == code, text[:40]


def test_the_errors_are_bounded():
    text = "".join(f"key{n} = 1\n" for n in range(MAX_PROBLEMS + 1))

    draft = apply_toml(_form(default_start(), NUMERIC), text)

    assert len(draft.problems) == MAX_PROBLEMS


def test_invalid_toml_has_a_position():
    draft = apply_toml(_form(default_start(), NUMERIC), "seed = 1\n[optim\n")

    assert "line 2" in str(draft.problems[0])


def test_file_names_in_toml_are_refused():
    text = '[evaluation.sets]\nsecret = "/etc/passwd"\n'

    draft = apply_toml(_form(default_start(), NUMERIC), text)

    assert draft.problems[0].key == "evaluation.sets.secret"
    assert " secret " in str(draft.problems[0])


def test_other_rows_have_a_note():
    draft = apply_toml(_form(default_start(), NUMERIC), "[data]\nrows = 'my.jsonl'\n")

    assert not draft.problems
    assert "“my.jsonl”" in draft.notes[0]


def test_an_invalid_form_is_shown_as_typed():
    form = _form(default_start(), NUMERIC)
    form.texts["optim.num_steps"] = "many"

    assert 'num_steps = "many"' in write_form(form)


def test_the_page_applies_toml_and_saves_a_reward_it_brings(alice_client, team):
    make_dataset(team)
    make_recipe(team)
    fields = _fields(alice_client.get(f"/{team.slug}/runs/new").text)
    shown = alice_client.post(f"/{team.slug}/runs/new/toml", fields)
    assert "[optim]" in shown.text
    text = "[optim]\nnum_steps = 7\n[[reward.recipe.rules]]\n"
    text += "name = 'c'\nkind = 'countdown'\n"

    url = f"/{team.slug}/runs/new/from-toml"
    refused = alice_client.post(url, fields | {"toml": text})
    applied = alice_client.post(url, fields | {"toml": text, "saves_rewards": "1"})

    assert refused.status_code == 422
    assert "reward.recipe: " in refused.text
    assert applied.status_code == 200
    assert _fields(applied.text)["optim.num_steps"] == "7"
    assert RewardRecipe.objects.filter(team=team, name="Reward from TOML").exists()
    assert "data-problems>" not in applied.text
