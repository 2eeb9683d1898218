"""Each field of each operation with eighteen odd values, the others as documented."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.db import transaction

from dashboard.api import guards
from dashboard.api.mcp.view import TOOLS
from dashboard.api.v1 import example_of, openapi_document
from dashboard.runs.models import Run
from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.api.known_things import known_things
from tests.dashboard.api.rows_of_tools import make_things, rows_of_tools
from tests.inputs.odd_values import ODD_VALUES, with_odd_values
from tests.inputs.requesting import failures

pytestmark = [pytest.mark.django_db, pytest.mark.slow(minutes=9)]
DOCUMENT = json.loads(json.dumps(openapi_document()))
PARTS = DOCUMENT["components"]["schemas"]
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
}
# As a query or a path has them: no JSON, but what it says.
TEXTS = {
    name: "a\0b" if name == "a NUL" else json.loads(odd) if odd[:1] == '"' else odd
    for name, odd in ODD_VALUES.items()
    if name not in ("a lone surrogate", "1 MB")
} | {"invalid UTF-8": b"\xff\xfe", "10,000 characters": "x" * 10_000}


@pytest.fixture
def program(alice, monkeypatch) -> Program:
    monkeypatch.setattr(guards, "MAX_OF_TOKEN", 10**6)
    monkeypatch.setattr(guards, "MAX_OF_INGEST", 10**6)
    return Program(make_token(alice, "admin"))


@pytest.fixture
def known(team, alice) -> dict[str, int | str]:
    """By the names that addresses, queries and bodies have for them."""
    things = known_things(team, alice)
    run = Run.objects.get(pk=things["run_id"])
    assert run.dataset_version_id
    assert run.recipe_version_id
    fitting: dict[str, int | str] = {
        "dataset_version_id": run.dataset_version_id,
        "recipe_version_id": run.recipe_version_id,
        "runs": str(run.pk),
        "model": "Qwen/Qwen2.5-0.5B-Instruct",
        "title": "A report",
        "metric": "reward/mean",
        "offset": 0,
        "from_step": 0,
    }
    return things | fitting


@pytest.mark.parametrize("label", OPERATIONS)
def test_no_field_of_an_operation_fails(label, program, known):
    method, path = label.split(" ")
    wrong, num_requested = [], 0
    for what, address, body in _questions(path, OPERATIONS[label], known):
        with transaction.atomic(), failures() as found:
            status = program.client.generic(
                method,
                address,
                body,
                content_type="application/json",
                headers=program.headers,
            ).status_code
            transaction.set_rollback(True)
        num_requested += 1
        assert status != 429
        if status >= 500 or found:
            wrong.append((what, status, found))

    assert wrong == []
    assert num_requested >= 1


@pytest.mark.parametrize("tool", TOOLS)
def test_no_argument_of_a_tool_fails(tool, program, team, alice):
    things = make_things(team, alice, "known")
    wrong, num_requested = [], 0
    for name, arguments in rows_of_tools(things):
        if name != tool or arguments.get("kind") in ("model", "preset"):
            continue
        model = TOOLS[tool].arguments
        tree = model.model_validate(arguments).model_dump(mode="json", by_alias=True)
        params = {"name": tool, "arguments": tree}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        for what, body in with_odd_values(message):
            with transaction.atomic(), failures() as found:
                status = program.client.post(
                    "/mcp", body, "application/json", headers=program.headers
                ).status_code
                transaction.set_rollback(True)
            num_requested += 1
            if status >= 429 or found:
                wrong.append((what, status, found))

    assert wrong == []
    assert num_requested >= len(ODD_VALUES)


def _questions(
    path: str, operation: dict[str, Any], known: dict[str, int | str]
) -> Iterator[tuple[str, str, str]]:
    """What is odd, the address and the body."""
    parameters = operation.get("parameters", [])
    names = [one["name"] for one in parameters if one["in"] == "path"]
    query = {
        one["name"]: _example(one["schema"], one["name"], known)
        for one in parameters
        if one["in"] == "query" and (one.get("required") or one["name"] == "runs")
    }
    place = path.format(**{name: known[name] for name in names})
    tree = _body(operation, known)
    body = "" if tree is None else json.dumps(tree)
    yield "nothing", _address(place, query), body
    for name in names:
        for what, odd in TEXTS.items():
            if odd:
                odd_place = path.format(**known | {name: quote(odd, safe="")})
                yield f"{name}: {what}", _address(odd_place, query), body
    for one in parameters:
        for what, odd in TEXTS.items():
            if one["in"] == "query":
                requested = _address(place, query | {one["name"]: odd})
                yield f"{one['name']}: {what}", requested, body
    if tree is not None:
        for what, text in with_odd_values(tree):
            yield what, _address(place, query), text


def _address(place: str, query: dict[str, Any]) -> str:
    return f"{place}?{urlencode(query)}"


def _body(operation: dict[str, Any], known: dict[str, int | str]) -> Any:
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" not in content:
        return None
    tree = example_of(content["application/json"]["schema"], PARTS)
    return _with_known(tree, known | {"name": "calm_otter"})


def _example(schema: Any, name: str, known: dict[str, int | str]) -> Any:
    return known.get(name, example_of(schema, PARTS))


def _with_known(tree: Any, given: dict[str, int | str]) -> Any:
    """With numbers of things that are there, where a field names one."""
    if isinstance(tree, list):
        return [_with_known(one, given) for one in tree]
    if not isinstance(tree, dict):
        return tree
    # Either is taken, not both.
    left_out = {"spec"} if "recipe_version_id" in tree else set()
    return {
        name: given[name] if name in given else _with_known(part, given)
        for name, part in tree.items()
        if name not in left_out
    }
