"""Schemathesis calls each operation with everything its schema allows and more."""

import json
from typing import Any

import hypothesis
import pytest
import schemathesis
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import transaction
from hypothesis import HealthCheck, Phase
from schemathesis import GenerationMode

from dashboard.api.v1 import openapi_document
from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.api.known_things import known_things

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
EXAMPLES = 4  # of each mode
DOCUMENT = json.loads(json.dumps(openapi_document()))
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = {each.ok().label: each.ok() for each in SCHEMA.get_all_operations()}


@pytest.fixture
def program(alice) -> Program:
    return Program(make_token(alice, "admin"))


@pytest.fixture
def known(team, alice) -> dict[str, int | str]:
    return known_things(team, alice)


@pytest.mark.parametrize("label", OPERATIONS)
def test_no_operation_fails(label, program, known):
    """What its schema allows, then what it does not."""
    for mode in GenerationMode:
        ask_many(OPERATIONS[label], mode, program, known)


def ask_many(
    operation: Any,
    mode: GenerationMode,
    program: Program,
    known: dict[str, int | str],
) -> None:
    """Half of the time existing IDs, so that later checks are reached."""

    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],  # to shrink an example takes minutes
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(
        case=operation.as_strategy(generation_mode=mode),
        is_known=hypothesis.strategies.booleans(),
    )
    def ask(case: Any, is_known: bool) -> None:
        if is_known and case.path_parameters:
            case.path_parameters |= {
                name: known[name] for name in case.path_parameters if name in known
            }
        with transaction.atomic():
            answer = send(program, case)
            transaction.set_rollback(True)

        assert answer.status_code < 500, (case.as_curl_command(), answer.content)
        statuses = operation.definition.raw["responses"]
        refused = {"400", "404", "405", "413"}
        assert str(answer.status_code) in {*statuses, *refused}, case.as_curl_command()
        if answer.status_code >= 400:
            assert answer["Content-Type"] == "application/problem+json"

    ask()


def send(program: Program, case: Any) -> Any:
    path = case.formatted_path.removeprefix("/api/v1")
    query = [(k, v) for k, v in (case.query or {}).items() if v is not None]
    headers = {
        name: str(value).encode("ascii", "replace").decode()
        for name, value in (case.headers or {}).items()
        if str(value).isprintable()
    }
    body = case.body
    if not isinstance(body, (dict, list, str, int, float, bool, type(None))):
        body = None
    extra: dict[str, Any] = {"headers": program.headers | headers}
    address = f"/api/v1{path}"
    if case.media_type == "multipart/form-data":
        fields = body if isinstance(body, dict) else {}
        data = {n: str(v) for n, v in fields.items() if n != "file" and v is not None}
        data["file"] = SimpleUploadedFile("rows.jsonl", b'{"prompt": "1+1="}\n')
        return program.client.post(address, data, query_params=query, **extra)
    if case.media_type:
        extra["data"] = json.dumps(body)
    return program.client.generic(
        case.method,
        address,
        content_type="application/json",
        query_params=dict(query),
        **extra,
    )
