import pytest

from dashboard.rewards.gallery import read_scores, score_examples
from dashboard.rewards.models import RecipeVersion, RewardRecipe
from dashboard.rewards.recipe_text import write_formula
from dashboard.rewards.services import save_recipe_version
from tests.dashboard.completions.factories import make_recipe, make_run
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


@pytest.fixture(scope="module")
def version(shared_team, shared_alice) -> RecipeVersion:
    return save_recipe_version(
        team=shared_team, name="Sums", recipe=RECIPE, user=shared_alice
    )


def test_an_empty_list_offers_templates(alice_client):
    page = alice_client.get("/alpha/rewards/").content.decode()

    assert "/alpha/rewards/new" in page
    assert "/alpha/rewards/new?template=number" in page


def test_the_list_has_formula_and_last_reward_of_each(
    alice_client, team, version, django_assert_num_queries
):
    rewards = {"last": {"reward/mean": 0.25}}
    make_run(team, recipe_version=version, last_step=3, summary=rewards)
    newest = make_run(
        team,
        "newest",
        recipe_version=version,
        last_step=2,
        summary={"last": {"reward/mean": 0.8125}},
    )
    make_run(team, "waiting", recipe_version=version)
    make_recipe(team, "unused")

    with django_assert_num_queries(7):
        page = alice_client.get("/alpha/rewards/")

    listed = {recipe.name: rest for recipe, *rest in page.context["recipes"]}
    assert listed["Sums"][1:] == [
        write_formula(RECIPE),
        {
            "recipe_version__recipe_id": version.recipe_id,
            "id": newest.pk,
            "name": "newest",
            "last_reward": 0.8125,
        },
    ]
    assert listed["unused"][2] is None


def test_a_page_lists_the_runs_that_used_the_reward(alice_client, team, version):
    for number in range(10):
        make_run(team, f"run-{number}", recipe_version=version)
    make_run(team, "other")

    page = alice_client.get(f"/alpha/rewards/{version.recipe_id}/")

    assert [run["name"] for run in page.context["runs"]] == [
        f"run-{number}" for number in range(9, 1, -1)
    ]
    assert page.context["num_runs"] == 10
    newest = page.context["runs"][0]["id"]
    assert f"/alpha/rescorings/new?recipe={version.pk}&amp;run={newest}" in page.text


def test_each_rule_is_in_the_gallery_with_scores_of_its_own(alice_client):
    page = alice_client.get("/alpha/rewards/gallery")

    offered = [rule for _, rules in page.context["categories"] for rule in rules]
    assert sorted(each.rule.kind for each in offered) == sorted(RULES)
    for each in offered:
        if each.rule.batching is None:  # a model is not asked
            assert each.passing.score > each.failing.score, each.rule.kind
        else:
            assert (each.passing.score, each.failing.score) == (None, None)
        assert f'value="add:{each.rule.kind}"' in page.text


def test_the_gallery_shows_the_rules_scores():
    """`make docs` writes them."""
    written, given = read_scores(), score_examples()

    assert list(written) == list(given)
    for kind, scores in given.items():
        assert written[kind] == pytest.approx(scores, abs=1e-5), kind


def test_each_template_is_a_reward_that_only_a_model_may_lack(alice_client):
    page = alice_client.get("/alpha/rewards/")

    for template, _ in page.context["templates"]:
        address = f"/alpha/rewards/new?template={template.key}"
        assert address in page.text
        draft = alice_client.get(address).context["draft"]
        assert [rule.kind for rule in draft.rules] == [
            kind for kind, *_ in template.rules
        ]
        assert (draft.recipe is None) == (template.key == "judge")


def test_a_recipe_page_shows_its_rules_bounds_and_hash(alice_client, version):
    page = alice_client.get(f"/alpha/rewards/{version.recipe_id}/").content.decode()

    assert RULES["numeric_answer"].title in page
    assert version.content_sha256[:12] in page
    assert f"?recipe={version.pk}" in page


def test_an_unknown_version_is_404(alice_client, version):
    url = f"/alpha/rewards/{version.recipe_id}/"

    assert alice_client.get(url, {"version": "1"}).status_code == 200
    assert alice_client.get(url, {"version": "2"}).status_code == 404
    assert alice_client.get(url, {"version": "x"}).status_code == 404


def test_a_viewer_cannot_save(bob_client, version):
    url = f"/alpha/rewards/{version.recipe_id}/edit"

    assert bob_client.post(url, {"action": "save"}).status_code == 403
    assert RewardRecipe.objects.count() == 1
