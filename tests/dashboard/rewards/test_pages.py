import pytest
from django.test import Client

from dashboard.accounts.models import Team, User
from dashboard.rewards.models import RecipeVersion, RewardRecipe
from dashboard.rewards.recipe_text import recipe_sentence
from dashboard.rewards.services import save_recipe_version
from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe

RECIPE = Recipe.model_validate(
    {
        "rules": [
            {"name": "answer", "kind": "numeric_answer", "weight": 1},
            {"name": "format", "kind": "format_tags", "weight": 0.2},
        ]
    }
)


@pytest.fixture
def version(team: Team, alice: User) -> RecipeVersion:
    return save_recipe_version(team=team, name="Sums", recipe=RECIPE, user=alice)


def test_an_empty_list_offers_to_make_a_recipe(alice_client: Client):
    page = alice_client.get("/alpha/rewards/").content.decode()

    assert "/alpha/rewards/new" in page


def test_the_list_summarizes_each_recipe(alice_client: Client, version: RecipeVersion):
    page = alice_client.get("/alpha/rewards/").text

    assert recipe_sentence(RECIPE) in page


def test_a_recipe_page_shows_its_rules_bounds_and_hash(
    alice_client: Client, version: RecipeVersion
):
    page = alice_client.get(f"/alpha/rewards/{version.recipe_id}/").content.decode()

    assert RULES["numeric_answer"].title in page
    assert version.content_sha256[:12] in page
    assert f"?recipe={version.pk}" in page


def test_an_unknown_version_is_404(alice_client: Client, version: RecipeVersion):
    url = f"/alpha/rewards/{version.recipe_id}/"

    assert alice_client.get(url, {"version": "1"}).status_code == 200
    assert alice_client.get(url, {"version": "2"}).status_code == 404
    assert alice_client.get(url, {"version": "x"}).status_code == 404


def test_a_stranger_finds_nothing(charlie_client: Client, version: RecipeVersion):
    """Nor under a team of their own."""
    own = f"/other/rewards/{version.recipe_id}/"
    for path in ("", "new", f"{version.recipe_id}/", f"{version.recipe_id}/edit"):
        url = f"/alpha/rewards/{path}"

        assert charlie_client.get(url).status_code == 404, url
        assert charlie_client.post(url).status_code in (404, 405), url
    assert charlie_client.get(own).status_code == 404
    assert charlie_client.post(f"{own}edit").status_code == 404


def test_viewers_can_read_but_not_save(bob_client: Client, version: RecipeVersion):
    for path in ("new", f"{version.recipe_id}/edit"):
        url = f"/alpha/rewards/{path}"

        assert bob_client.get(url).status_code == 200
        assert bob_client.post(url, {"action": "save"}).status_code == 403
    assert RewardRecipe.objects.count() == 1
