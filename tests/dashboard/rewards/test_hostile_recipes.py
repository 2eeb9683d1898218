"""A recipe on the workbench cannot keep the page, or the judge, for itself."""

from __future__ import annotations

import pytest

from dashboard.accounts.models import Team, User
from dashboard.datasets.row import Row
from dashboard.datasets.services import create_dataset_version
from dashboard.rewards.workbench import pick_rows, try_recipe, warn_unscorable
from trainer.rewards.spec import Recipe

# An answer that takes math-verify minutes to read.
ENDLESS = "<answer>" + "1 " * 5_000 + "</answer>"


@pytest.mark.django_db
def test_forty_rules_that_each_wait_a_minute_end_within_seconds(
    team: Team, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.rewards.workbench.MAX_SECONDS", 0.3)
    version = create_dataset_version(
        team=team,
        name="endless",
        rows=[Row(prompt=f"{n}?", answer="42") for n in range(5)],
        mapping={},
        source={},
        user=alice,
    )
    params = {"timeout_seconds": 60}
    rules = [
        {"name": f"r{n}", "kind": "math_verify", "params": params} for n in range(40)
    ]
    recipe = Recipe.model_validate({"rules": rules})
    rows = pick_rows(version, offset=0, seed=None)
    warn_unscorable(recipe, rows[:1])  # the judge is started

    benches = try_recipe(recipe, rows, dict.fromkeys(range(5), ENDLESS))
    warn_unscorable(recipe, rows)

    (tried,) = benches[0].tried
    assert tried.score is not None
    assert "No time" in tried.score.errors["r39"]
