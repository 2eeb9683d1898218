"""Pages ask a judge only where someone tries it, and say what is missing."""

from collections.abc import Iterator

import pytest
from django.test import Client

from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row
from dashboard.rewards.models import RecipeVersion, RewardRecipe
from dashboard.runs.launch.page import rules_without_score
from tests.dashboard.completions.factories import store_dataset
from tests.dashboard.rewards.editor import fields
from tests.trainer.rewards.judge_server import Judging, judge_server
from trainer.rewards import session

SCORES = "/alpha/rewards/scores"


@pytest.fixture
def judging(monkeypatch) -> Iterator[Judging]:
    monkeypatch.setattr(session, "_current", session.Session())
    with judge_server() as server:
        yield server


@pytest.fixture
def allowed(judging, monkeypatch) -> Judging:
    monkeypatch.setenv("COHORT_JUDGE_HOSTS", judging.url.split("/")[2])
    return judging


@pytest.fixture(scope="module")
def version(shared_team) -> DatasetVersion:
    rows = [Row(prompt=f"{i}+{i}?", answer=str(2 * i), columns={}) for i in range(5)]
    return store_dataset(shared_team, rows)


def tried(
    client: Client,
    version: DatasetVersion,
    kind: str,
    *,
    asks: str = "on",
    **params: str,
) -> str:
    changes = {f"params-{name}": text for name, text in params.items()}
    shown = {"dataset": str(version.pk), "completion-1": "2", "asks": asks}
    answer = client.post(SCORES, fields((kind, changes), **shown))
    assert answer.status_code == 200
    return answer.content.decode()


def test_a_judge_is_called_where_it_is_asked_for(alice_client, version, allowed):
    params = {"base_url": allowed.url, "model": "m"}
    unasked = tried(alice_client, version, "llm_judge", asks="", **params)
    assert allowed.asked == []
    assert "<strong>0.667</strong>" not in unasked
    assert '"asks"' in unasked  # the button

    page = tried(alice_client, version, "llm_judge", base_url=allowed.url, model="m")

    assert "<strong>0.667</strong>" in page
    (asked,) = allowed.asked  # and not for the rows' own warnings
    assert "1+1?" in asked["messages"][1]["content"]
    (use,) = version.dataset.team.judge_uses.all()
    assert (use.source, use.model, use.user.username) == ("trial", "m", "alice")
    assert (use.calls, use.calls_without_usage, use.from_file) == (1, 1, 0)


def test_viewers_cannot_call_a_judge(bob_client, version, allowed):
    """The key's owner pays, and a rubric may be any question at all."""
    page = tried(bob_client, version, "llm_judge", base_url=allowed.url, model="m")

    assert '"asks"' not in page
    assert allowed.asked == []


def test_a_judge_that_is_not_allowed_is_reported(alice_client, version, judging):
    page = tried(alice_client, version, "llm_judge", base_url=judging.url, model="m")

    assert "COHORT_JUDGE_HOSTS" in page
    assert judging.asked == []


def test_a_reward_model_is_not_loaded_for_a_page(alice_client, version):
    page = tried(alice_client, version, "reward_model", path="models/reward")

    assert "cell-error" in page


def test_launch_checks_read_rows_without_calling_a_judge(team, version, allowed):
    params = {
        "base_url": allowed.url,
        "model": "m",
        "template": "{completion} {rubric}",
    }
    rule = {"name": "judge", "kind": "llm_judge", "weight": 1.0, "params": params}
    recipe = RewardRecipe.objects.create(team=team, name="Judged")
    recipe_version = RecipeVersion.objects.create(
        recipe=recipe, number=1, spec={"rules": [rule]}
    )

    ((_, reason),) = rules_without_score(recipe_version.pk, version.pk)

    assert "{rubric}" in reason
    assert allowed.asked == []
