"""Bad input to any endpoint is refused with a status and a message, and not stored."""

import pytest
from django.db import transaction

from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.completions.factories import make_group, make_run
from tests.inputs.cases import LIBRARIES, Case, Endpoint, World
from tests.inputs.endpoints import ENDPOINTS
from tests.inputs.requesting import failures

pytestmark = [pytest.mark.django_db, pytest.mark.slow, pytest.mark.soak]


@pytest.fixture
def world(team, alice, alice_client) -> World:
    run = make_run(team)
    make_group(run, step=1, prompt_index=0)
    alice_client.raise_request_exception = False
    return World(alice_client, Program(make_token(alice, "admin")), team, alice, run)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
def test_bad_input_gets_an_error_response(endpoint, world):
    wrong = {
        case.name: found
        for case in endpoint.cases
        if (found := _try(endpoint, case, world))
    }

    assert wrong == {}


def _try(endpoint: Endpoint, case: Case, world: World) -> list[str]:
    """What is wrong with the response."""
    with transaction.atomic(), failures() as found:
        before = endpoint.leaves()
        response = endpoint.send(world, case.sent)
        after = endpoint.leaves()
        transaction.set_rollback(True)
    wrong = list(found)
    if response.status != (case.status or endpoint.status):
        wrong.append(f"status {response.status}")
    if not response.message:
        wrong.append("no message")
    if match := LIBRARIES.search(response.message):
        wrong.append(f"words of a library: {match[0]}")
    if before != after:
        wrong.append(f"{after} where {before} were: something was stored")
    return wrong
