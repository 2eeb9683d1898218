"""The team's tokens and the API's operations, as pages."""

import re
from collections import defaultdict
from datetime import timedelta

import pytest
from django.utils import timezone
from ninja import Schema

from dashboard.api.models import ApiToken
from tests.dashboard.api.asking import Program, make_token, token_of

pytestmark = pytest.mark.django_db


def test_a_token_is_shown_once(alice, alice_client):
    values = {
        "name": " nightly  sweep ",
        "scopes": ["read", "write"],
        "lifetime": "30",
    }
    made = alice_client.post("/alpha/tokens/", values)

    found = re.search(r"data-secret>(cohort_[\w-]+)<", made.text)
    assert found, made.text
    token = token_of(found[1])
    assert (token.name, token.scopes) == ("nightly sweep", ["read", "write"])
    assert token.expires_at is not None
    assert token.expires_at - timezone.now() > timedelta(days=29)
    assert made["Cache-Control"].startswith("max-age=0")
    assert Program(found[1]).get("/me").status_code == 200
    assert found[1] not in alice_client.get("/alpha/tokens/").text


def test_a_token_of_one_click_has_what_its_use_needs(alice, alice_client):
    for name, scopes, line in [
        ("Report runs", ["ingest"], "report_to="),
        ("Command line", ["read", "write"], "cohort runs list"),
    ]:
        values = alice_client.get("/alpha/tokens/").context["uses"]
        (use,) = [use for use in values if use.name == name]
        posted = {"name": use.name, "scopes": use.scopes, "lifetime": "365"}
        made = alice_client.post("/alpha/tokens/", posted)

        found = re.search(r"data-secret>(cohort_[\w-]+)<", made.text)
        assert found
        assert token_of(found[1]).scopes == scopes
        assert line in made.text


def test_an_invalid_token_form_marks_its_field(alice, alice_client):
    for change, field in [
        ({"name": "  "}, "name"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes"),
        ({"lifetime": "4"}, "lifetime"),
    ]:
        values = {"name": "x", "scopes": ["read"], "lifetime": "", **change}

        refused = alice_client.post("/alpha/tokens/", values)

        assert refused.status_code == 422, change
        assert list(refused.context["form"].errors) == [field], change
        assert not ApiToken.objects.exists(), change


def test_a_viewer_can_only_choose_read(bob, bob_client):
    page = bob_client.get("/alpha/tokens/").text
    refused = bob_client.post("/alpha/tokens/", {"name": "x", "scopes": ["write"]})

    assert re.findall(r'name="scopes" value="(\w+)"', page) == ["read"]
    assert refused.status_code == 422


def test_members_see_their_own_and_managers_everybodys(
    alice, bob, alice_client, bob_client
):
    make_token(alice, name="hers")
    make_token(bob, name="his")

    assert "hers" not in bob_client.get("/alpha/tokens/").text
    everything = alice_client.get("/alpha/tokens/").text
    assert "hers" in everything
    assert "his" in everything


def test_only_managers_revoke_others_tokens(alice, bob, alice_client, bob_client):
    hers, his = token_of(make_token(alice)), token_of(make_token(bob))

    assert bob_client.post(f"/alpha/tokens/{hers.pk}/revoke").status_code == 404
    assert alice_client.post(f"/alpha/tokens/{his.pk}/revoke").status_code == 302

    hers.refresh_from_db()
    his.refresh_from_db()
    assert (hers.state, his.state) == ("active", "revoked")


def test_no_two_schemas_are_called_the_same():
    """The document would show one of them for both."""
    found: dict[str, set[type[Schema]]] = defaultdict(set)
    waiting: list[type[Schema]] = [Schema]
    while waiting:
        for schema in waiting.pop().__subclasses__():
            waiting.append(schema)
            if schema.__module__.startswith("dashboard."):
                found[schema.__name__].add(schema)

    assert {name for name, schemas in found.items() if len(schemas) > 1} == set()


def test_the_document_is_open_and_has_an_example_of_every_answer(client):
    document = client.get("/api/v1/openapi.json").json()

    assert document["openapi"].startswith("3.")
    assert document["paths"]["/api/v1/me"]["get"]["security"] == [{"Token": []}]
    assert document["paths"]["/api/v1/runs"]["get"]["security"] == [{"Token": ["read"]}]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert {"401", "403", "422", "429"} <= set(operation["responses"])
            for response in operation["responses"].values():
                for media, content in response.get("content", {}).items():
                    if media != "*/*":
                        assert content.get("example"), (method, path)
            for each in operation.get("parameters", []):
                assert "schema" in each


def test_page_has_the_lines_for_assistants(alice_client, team):
    page = alice_client.get(f"/{team.slug}/tokens/").text

    assert 'data-mcp="http://testserver/mcp"' in page
    for client in ("claude-code", "codex", "cursor"):
        assert f'data-client="{client}"' in page
