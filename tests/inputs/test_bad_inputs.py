"""Whatever comes in by any door is refused with its status and a word, and kept out."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.test import Client

from dashboard.accounts.models import Team, User
from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.samples.factories import make_group, make_run
from tests.inputs.asking import failures
from tests.inputs.cases import LIBRARIES, Case, Door, World
from tests.inputs.doors import DOORS

pytestmark = [pytest.mark.django_db, pytest.mark.slow, pytest.mark.soak]


@pytest.fixture
def world(team: Team, alice: User, alice_client: Client) -> World:
    run = make_run(team)
    make_group(run, step=1, prompt_index=0)
    alice_client.raise_request_exception = False
    return World(alice_client, Program(make_token(alice, "admin")), team, alice, run)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_bad_input_gets_an_error_response(door: Door, world: World) -> None:
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
    if not answer.said:
        wrong.append("nothing is said")
    if match := LIBRARIES.search(answer.said):
        wrong.append(f"words of a library: {match[0]}")
    if before != after:
        wrong.append(f"{after} where {before} were: something was stored")
    return wrong
