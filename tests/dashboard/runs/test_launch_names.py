from __future__ import annotations

from dashboard.accounts.models import Team
from dashboard.runs.launch.names import propose_name
from tests.dashboard.runs.launching import make_dataset, make_recipe, make_run


def test_a_proposed_name_is_two_words_and_stays_until_it_is_used(team: Team) -> None:
    name = propose_name(team)

    assert len(name.split("-")) == 2
    assert propose_name(team) == name


def test_no_two_runs_of_a_team_are_proposed_the_same_name(team: Team) -> None:
    dataset, recipe = make_dataset(team), make_recipe(team)

    names = set()
    for _ in range(150):
        names.add(name := propose_name(team))
        make_run(team, name, dataset=dataset, recipe=recipe)

    assert len(names) == 150
