"""The prices that judges had become prices of the team."""

from importlib import import_module

import pytest
from django.apps import apps

from dashboard.costs.models import Price
from tests.dashboard.analysis.questions.factories import make_hedging_run

migration = import_module(
    "dashboard.analysis.questions.migrations.0002_prices_of_teams"
)
pytestmark = pytest.mark.django_db


class Before:
    """The models before the move: judges with prices."""

    class Judge:
        def __init__(self, team, **fields):
            self.team_id, self.model = team.pk, "gpt-large"
            self.price_in = self.price_out = None
            vars(self).update(fields)

    def __init__(self, *judges):
        self._judges = judges

    def get_model(self, app, name):
        return self if name == "TeamJudge" else apps.get_model(app, name)

    @property
    def objects(self):
        return self

    def order_by(self, _):
        return self._judges


def test_prices_of_judges_and_of_asked_questions_move(team):
    run = make_hedging_run(team, num_steps=1)
    asked = {"text": "?", "labels": [], "sample_size": 20, "goal": 5}
    for model, price in (("gone", 1.0), ("gpt-large", 9.0)):
        run.questions.create(
            team=team,
            prompt_version=1,
            judge={"model": model, "price_in": price, "price_out": None},
            **asked,
        )

    migration.move_prices(Before(Before.Judge(team, price_in=2.0, price_out=8.0)), None)

    moved = Price.objects.order_by("name", "unit").values_list("name", "unit", "amount")
    assert list(moved) == [
        ("gone", "cached_tokens", 1.0),
        ("gone", "input_tokens", 1.0),
        ("gpt-large", "cached_tokens", 2.0),
        ("gpt-large", "input_tokens", 2.0),
        ("gpt-large", "output_tokens", 8.0),
    ]
    assert set(Price.objects.values_list("currency", flat=True)) == {""}
