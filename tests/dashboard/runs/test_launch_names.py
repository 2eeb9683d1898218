from __future__ import annotations

from dashboard.accounts.models import Team
from dashboard.runs.launch.names import _names, propose_name
from tests.dashboard.runs.launching import make_dataset, make_recipe, make_run


def test_a_proposed_name_is_two_words_and_stays_until_it_is_used(team: Team) -> None:
    name = propose_name(team)

    assert len(name.split("-")) == 2
    assert propose_name(team) == name


def test_a_name_that_a_run_of_the_team_bears_is_not_proposed(team: Team) -> None:
    first, second = _names(seed=f"{team.pk}:1", count=2)

    make_run(team, first, dataset=make_dataset(team), recipe=make_recipe(team))

    assert propose_name(team) == second
