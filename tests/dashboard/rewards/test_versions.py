"""Recipe versions never change."""

import pytest
from django.db import IntegrityError

from dashboard.accounts.models import AuditEntry, Team
from dashboard.rewards.models import RecipeVersion, RewardRecipe
from dashboard.rewards.services import save_recipe_version
from trainer.rewards.spec import Recipe


def recipe(weight: float = 1.0) -> Recipe:
    rule = {"name": "answer", "kind": "exact_answer", "weight": weight}
    return Recipe.model_validate({"rules": [rule]})


def save(team: Team, weight: float = 1.0, **changes: object) -> RecipeVersion:
    given = {"name": "Exact", "user": None, **changes}
    return save_recipe_version(team=team, recipe=recipe(weight), **given)


def test_a_saved_recipe_is_unchanged(team):
    version = save(team, weight=0.1234567890123)

    stored = RecipeVersion.objects.get(pk=version.pk)
    assert Recipe.model_validate(stored.spec) == recipe(0.1234567890123)


def test_defaults_are_written_out_so_that_they_cannot_change(team):
    (rule,) = save(team).spec["rules"]

    assert rule["params"]["ignore_case"] is True


def test_another_recipe_is_the_next_version(team):
    first = save(team)

    second = save(team, weight=2, existing=first.recipe)

    assert (first.number, second.number) == (1, 2)
    assert RecipeVersion.objects.get(pk=first.pk).spec == first.spec


def test_the_same_recipe_is_the_same_version(team):
    first = save(team)

    assert save(team, existing=first.recipe) == first
    assert AuditEntry.objects.filter(verb="recipe.version_created").count() == 1


def test_a_name_is_taken_once_in_a_team(team):
    save(team)

    with pytest.raises(ValueError, match="Exact"):
        save(team)

    assert RewardRecipe.objects.count() == 1


def test_the_database_refuses_a_number_twice(team):
    version = save(team)

    with pytest.raises(IntegrityError):
        version.recipe.versions.create(number=1, spec={})


def test_the_author_of_a_version_is_recorded(team, alice):
    version = save(team, user=alice)

    entry = AuditEntry.objects.get(verb="recipe.version_created")
    assert (entry.actor, entry.object_id) == (alice, version.pk)
