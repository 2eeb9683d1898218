"""What a launch form begins with, and how it says what was changed since."""

import itertools
import json
import re
from html import unescape
from typing import Any

import pytest

from dashboard.accounts.models import Team
from dashboard.runs.config.fields import all_fields
from dashboard.runs.launch import starts
from dashboard.runs.launch.starts import _names, propose_name
from dashboard.runs.models import Run
from tests.dashboard.runs.launching import (
    COUNTDOWN,
    NUMERIC,
    make_config,
    make_dataset,
    make_recipe,
    make_run,
)
from tests.dashboard.runs.test_clone import _fields
from tests.page_client import PageClient
from trainer.presets.preset import load_preset, preset_names

# With a recipe of its own and without, with two recipes, in either form.
LAUNCHED = {("trl", False), ("grpo-zero", True), ("deepseekmath-process", False)}
SAVES_REWARD = "data-start-recipe"  # the form of a preset's own reward


def _get(client: PageClient, team: Team, query: str) -> str:
    return unescape(client.read(f"/{team.slug}/runs/new?{query}"))


def _marked(page: str, path: str) -> str:
    block = page[page.index(f'data-setting="{path}"') :]
    found = re.search(r"<span[^>]*data-mark( hidden)?>(.*?)</span>", block)
    assert found
    return "" if found[1] else found[2]


def test_a_preset_fills_the_form(alice_client, team):
    for name, _ in LAUNCHED:
        preset = load_preset(name)

        page = _get(alice_client, team, f"preset={name}")

        assert f'<option value="{name}" selected>{preset.title}</option>' in page
        assert preset.source in page, name
        assert all(note in page for note in preset.notes), name
        length = preset.effective()["rollout"]["max_new_tokens"]
        assert _fields(page)["rollout.max_new_tokens"] == str(length), name


def test_methods_are_listed_before_systems(alice_client, team):
    page = _get(alice_client, team, "")

    _, methods, systems = re.split('<optgroup label="Published ', page)
    systems = systems.partition("</optgroup>")[0]
    for name in preset_names():
        kind = methods if load_preset(name).kind == "method" else systems
        assert f'<option value="{name}"' in kind, name


def test_a_presets_value_is_shown_beside_the_setting(alice_client, team):
    page = _get(alice_client, team, "preset=trl")

    row = page[page.index("rollout.max_new_tokens</th>") :]
    assert re.findall(r"\d+", row[:200])[:2] == ["512", "256"]
    assert _marked(page, "rollout.max_new_tokens") == "from trl, default 256"
    assert _marked(page, "rollout.temperature") == ""


def test_changed_settings_are_counted_and_can_be_reset(alice_client, team):
    form = {"preset": "trl", "rollout.max_new_tokens": "64", "loss.kl_coef": "0.3"}
    form["loss.clip_low"] = "0.20"
    texts = {path: field.default_text for path, field in all_fields().items()}
    texts |= starts.find_start("trl", team=team, starters=[], scaled=False).texts

    answer = alice_client.post(f"/{team.slug}/runs/new", texts | form)

    page = unescape(answer.text)
    assert re.search(
        r"data-reset><span[^>]*>Max new tokens: </span>[\w ]+ <[^>]*>512<", page
    )
    assert re.search(r"data-reset hidden><span[^>]*>Group size: ", page)
    assert page.count("is-changed") == 2
    assert re.search(r"data-num-changed>2 ", page)
    assert _marked(page, "rollout.max_new_tokens") == "changed from trl: 512"
    assert _marked(page, "loss.clip_low") == ""  # 0.20 is 0.2


def test_an_unknown_preset_lists_the_known_ones(alice_client, team):
    page = _get(alice_client, team, "preset=nope")

    alert = re.search(r'role="alert">(.*?)</p>', page)
    assert alert
    assert "nope" in alert[1]
    assert "trl" in alert[1]
    assert _fields(page)["optim.learning_rate"] == "1e-6"


def test_loading_settings_keeps_the_choices(alice_client, team):
    dataset = make_dataset(team)
    make_dataset(team, "words")

    page = _get(
        alice_client,
        team,
        f"preset=trl&name=brave-otter&model=org/model&dataset={dataset.pk}",
    )

    fields = _fields(page)
    assert fields["name"] == "brave-otter"
    assert fields["model_other"] == "org/model"
    assert fields["dataset"] == str(dataset.pk)


@pytest.mark.parametrize(
    ("name", "scaled"),
    [
        pytest.param(*each, marks=[] if each in LAUNCHED else pytest.mark.slow)
        for each in itertools.product(preset_names(), (False, True))
    ],
)
def test_a_launched_preset_is_what_the_preset_says(alice_client, team, name, scaled):
    dataset = make_dataset(team, num_rows=100_000)
    query = f"preset={name}&scaled={int(scaled)}&model=org/m&dataset={dataset.pk}"
    fields = _fields(_get(alice_client, team, query))
    saved = alice_client.post(f"/{team.slug}/runs/new/recipe", fields)
    if saved.status_code == 200:  # else the preset has no reward
        fields = _fields(saved.text)

    fields |= {"confirmed": "on"}
    response = alice_client.post(f"/{team.slug}/runs/new", fields)

    assert response.status_code == 302
    config = Run.objects.get().config
    expected = json.loads(json.dumps(load_preset(name).effective(scaled=scaled)))
    for part, values in expected.items():
        assert {key: config[part][key] for key in values} == values, part


@pytest.fixture
def rewarding(monkeypatch) -> dict[str, Any]:
    """A preset that brings a reward of its own."""
    spec = make_config(reward={"recipe": NUMERIC})["reward"]["recipe"]
    whole = starts.start_of_preset

    def with_recipe(name: str, *, scaled: bool) -> starts.Start:
        start = whole(name, scaled=scaled)
        return starts.Start(
            key=start.key,
            title=start.title,
            name=start.name,
            texts=start.texts,
            recipe=spec,
        )

    monkeypatch.setattr(starts, "start_of_preset", with_recipe)
    return spec


def test_a_presets_reward_is_saved_by_one_button(alice_client, team, rewarding):
    dataset = make_dataset(team)
    page = _get(alice_client, team, f"preset=trl&dataset={dataset.pk}")
    assert SAVES_REWARD in page
    typed = {"name": "brave-otter", "optim.num_steps": "7"}

    response = alice_client.post(f"/{team.slug}/runs/new/recipe", _fields(page) | typed)

    saved = team.recipes.get()
    assert saved.name == "trl reward"
    assert saved.versions.get().spec == rewarding
    fields = _fields(response.text)
    assert SAVES_REWARD not in response.text
    assert fields["recipe"] == str(saved.versions.get().pk)
    assert fields["dataset"] == str(dataset.pk)
    assert typed.items() <= fields.items()


def test_a_reward_the_team_has_already_is_chosen(alice_client, team, rewarding):
    make_recipe(team, "first")
    own = make_recipe(team, "own", rewarding)

    page = _get(alice_client, team, "preset=trl")

    assert SAVES_REWARD not in page
    assert _fields(page)["recipe"] == str(own.pk)


def test_another_reward_is_not_preselected(alice_client, team, rewarding):
    make_recipe(team, "only", COUNTDOWN)

    assert _fields(_get(alice_client, team, "preset=trl"))["recipe"] == ""


def test_a_preset_without_a_reward_saves_none(alice_client, team):
    response = alice_client.post(f"/{team.slug}/runs/new/recipe", {"preset": ""})

    assert response.status_code == 404
    assert not team.recipes.exists()


def test_a_run_is_a_start_by_either_name(alice_client, team):
    config = make_config(optim={"learning_rate": 3e-5})
    run = make_run(
        team,
        "amber-otter",
        dataset=make_dataset(team),
        recipe=make_recipe(team),
        config=config,
    )

    for query in (f"clone={run.pk}", f"preset=run-{run.pk}"):
        page = _get(alice_client, team, query)
        assert _marked(page, "optim.learning_rate") == (
            f"from run #{run.pk}, default 1e-6"
        )


def test_another_teams_run_cannot_be_started_from(charlie_client, alice_client, team):
    run = make_run(team, "a", dataset=make_dataset(team), recipe=make_recipe(team))

    assert charlie_client.get(f"/other/runs/new?preset=run-{run.pk}").status_code == 404
    assert alice_client.get(f"/{team.slug}/runs/new?preset=run-0").status_code == 404


def test_a_proposed_name_is_two_words_and_stays_until_it_is_used(team):
    name = propose_name(team)

    assert len(name.split("-")) == 2
    assert propose_name(team) == name


def test_a_used_name_is_not_proposed(team):
    first, second = _names(seed=f"{team.pk}:1", count=2)

    make_run(team, first, dataset=make_dataset(team), recipe=make_recipe(team))

    assert propose_name(team) == second
