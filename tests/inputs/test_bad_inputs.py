"""Whatever comes in by any door is answered with the place, the value, the remedy."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.test import Client

from dashboard.accounts.models import Team, User
from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.samples.factories import make_group, make_run
from tests.inputs.asking import failures
from tests.inputs.cases import Case, Door, World
from tests.inputs.doors import DOORS

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(team: Team, alice: User, alice_client: Client) -> World:
    run = make_run(team)
    make_group(run, step=1, prompt_index=0)
    alice_client.raise_request_exception = False
    return World(alice_client, Program(make_token(alice, "admin")), team, alice, run)


def test_there_are_more_than_three_hundred_of_them() -> None:
    counts = {door.name: len(door.cases) for door in DOORS}

    print(*(f"{count:4} {name}" for name, count in counts.items()), sep="\n")  # noqa: T201
    assert sum(counts.values()) >= 300
    assert all(case.says for door in DOORS for case in door.cases)
    for door in DOORS:
        assert len({case.name for case in door.cases}) == len(door.cases), door.name


@pytest.mark.parametrize(
    "door",
    [
        pytest.param(
            door,
            id=door.name,
            marks=pytest.mark.slow if door.is_slow or place % 3 else [],
        )
        for place, door in enumerate(DOORS)
    ],
)
def test_bad_input_is_answered(door: Door, world: World) -> None:
    wrong = {
        case.name: found for case in door.cases if (found := _try(door, case, world))
    }

    assert wrong == {}


def _try(door: Door, case: Case, world: World) -> list[str]:
    """What is wrong with the answer."""
    with transaction.atomic(), failures() as found:
        before = door.leaves()
        answer = door.send(world, case.sent)
        after = door.leaves()
        transaction.set_rollback(True)
    wrong = list(found)
    if answer.status != (case.status or door.status):
        wrong.append(f"status {answer.status}")
    wrong += [
        f"no {says!r} in {answer.said!r}"
        for says in case.says
        if says not in answer.said
    ]
    if before != after:
        wrong.append(f"{after} where {before} were: something was stored")
    return wrong
