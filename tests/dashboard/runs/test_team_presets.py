"""Settings of the launch form that a team keeps under a name."""

from typing import Any

import pytest
from django.test import Client

from dashboard.accounts.models import AuditEntry, Team
from dashboard.runs.models import TeamPreset
from tests.dashboard.runs.launching import make_dataset, make_recipe
from tests.dashboard.runs.test_clone import _fields


@pytest.fixture
def filled(alice_client, team) -> dict[str, Any]:
    make_dataset(team)
    make_recipe(team)
    fields = _fields(alice_client.get(f"/{team.slug}/runs/new").text)
    return fields | {"model_other": "org/model", "model": "", "preset_name": "small"}


def _save(client: Client, team: Team, fields: dict[str, Any]) -> Any:
    return client.post(f"/{team.slug}/runs/new/presets", fields)


def test_a_preset_is_saved_and_fills_a_form(alice_client, team, filled):
    phases = '[[phases]]\nname = "a"\nnum_steps = 100\n'
    changed = filled | {"rollout.group_size": "6", "optim.num_steps": "100"}

    saved = _save(alice_client, team, changed | {"phases": phases})

    preset = TeamPreset.objects.get()
    assert saved.status_code == 302
    assert f"preset=team%3A{preset.pk}" in saved.headers["Location"]
    page = alice_client.get(f"/{team.slug}/runs/new?preset=team:{preset.pk}").text
    assert f'<option value="team:{preset.pk}" selected>small</option>' in page
    fields = _fields(page)
    assert fields["rollout.group_size"] == "6"
    assert 'name = "a"' in fields["phases"]


def test_a_preset_has_model_and_reward_only_if_selected(alice_client, team, filled):
    other = make_recipe(team, "other")
    both = {"keeps_model": "on", "keeps_recipe": "on", "recipe": str(other.pk)}
    _save(alice_client, team, filled)
    _save(alice_client, team, filled | both | {"preset_name": "whole"})
    without, whole = TeamPreset.objects.order_by("pk")

    page = alice_client.get(f"/{team.slug}/runs/new?preset=team:{whole.pk}").text

    assert (without.model, without.recipe_version) == ("", None)
    assert "path" not in without.config["model"]
    assert "recipe" not in without.config["reward"]
    assert "rows" not in without.config["data"]
    fields = _fields(page)
    assert fields["model_other"] == "org/model"
    assert fields["recipe"] == str(other.pk)


def test_a_preset_is_overwritten_only_if_selected_and_audited(
    alice_client, team, filled
):
    _save(alice_client, team, filled)
    changed = filled | {"seed": "7"}

    refused = _save(alice_client, team, changed)
    assert refused.status_code == 422
    assert "“small”" in refused.context["preset_problem"]
    _save(alice_client, team, changed | {"overwrites": "on"})

    assert TeamPreset.objects.get().config["seed"] == 7
    entry = AuditEntry.objects.get(verb="preset.overwritten")
    assert entry.detail["before"]["seed"] == 0


def test_a_preset_changed_by_another_user_shows_both_versions(
    alice_client, team, filled
):
    _save(alice_client, team, filled)
    pk = TeamPreset.objects.get().pk
    page = alice_client.get(f"/{team.slug}/runs/new?preset=team:{pk}").text
    began = filled | {n: _fields(page)[n] for n in ("preset", "preset_version")}
    began |= {"overwrites": "on"}
    _save(alice_client, team, began | {"seed": "7"})

    shown = _save(alice_client, team, began | {"seed": "8"})

    assert shown.status_code == 409
    assert TeamPreset.objects.get().config["seed"] == 7
    changed = dict(shown.context["preset_conflict"]["changes"])
    assert ("7" in changed["-"], "8" in changed["+"]) == (True, True)
    again = _fields(shown.text)
    assert (again["seed"], again["preset_name"]) == ("8", "small")
    saved = _save(alice_client, team, {**again, "overwrites": "on"})
    assert saved.status_code == 302
    assert TeamPreset.objects.get().config["seed"] == 8


def test_a_preset_chosen_on_the_open_form_is_replaced(alice_client, team, filled):
    for name, seed in (("other", "0"), ("small", "1")):
        _save(alice_client, team, filled | {"preset_name": name, "seed": seed})
    other, small = TeamPreset.objects.order_by("pk")
    page = alice_client.get(f"/{team.slug}/runs/new?preset=team:{other.pk}").text
    chosen = {
        "preset": f"team:{small.pk}",
        "preset_version": _fields(page)["preset_version"],
        "preset_name": "small",
        "overwrites": "on",
    }

    saved = _save(alice_client, team, filled | chosen | {"seed": "2"})

    assert saved.status_code == 302
    small.refresh_from_db()
    assert small.config["seed"] == 2


def test_invalid_settings_are_not_saved_as_a_preset(alice_client, team, filled):
    answer = _save(alice_client, team, filled | {"optim.num_steps": "many"})

    assert answer.status_code == 422
    assert answer.context["preset_problem"]
    assert not TeamPreset.objects.exists()


def test_a_preset_needs_a_name_of_one_line(alice_client, team, filled):
    for name in ("", "x" * 61, "a\nb"):
        answer = _save(alice_client, team, filled | {"preset_name": name})
        assert answer.status_code == 422, name


def test_a_preset_is_renamed_and_deleted(alice_client, team, filled):
    _save(alice_client, team, filled)
    preset = TeamPreset.objects.get()
    url = f"/{team.slug}/runs/presets/{preset.pk}"

    alice_client.post(url, {"action": "rename", "new_name": "tiny"})
    preset.refresh_from_db()
    assert preset.name == "tiny"
    alice_client.post(url, {"action": "delete"})

    assert not TeamPreset.objects.exists()
    verbs = AuditEntry.objects.filter(verb__startswith="preset.").order_by("pk")
    assert list(verbs.values_list("verb", flat=True)) == [
        "preset.saved",
        "preset.renamed",
        "preset.deleted",
    ]


def test_a_preset_of_another_team_is_404(alice_client, team):
    others = Team.objects.create(slug="beta", name="Beta")
    preset = TeamPreset.objects.create(team=others, name="theirs", config={})

    started = alice_client.get(f"/{team.slug}/runs/new?preset=team:{preset.pk}")
    changed = alice_client.post(
        f"/{team.slug}/runs/presets/{preset.pk}", {"action": "delete"}
    )

    assert (started.status_code, changed.status_code) == (404, 404)
    assert TeamPreset.objects.exists()
