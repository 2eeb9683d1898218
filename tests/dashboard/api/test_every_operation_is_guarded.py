"""Who gets which answer from every operation: a new one without a row fails here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ninja.operation import Operation

from dashboard.accounts.models import Membership, Role, Team, User
from dashboard.api import limits
from dashboard.api.auth import Bearer
from dashboard.api.urls import urlpatterns
from dashboard.api.v1 import api
from tests.dashboard.api.asking import Program, make_token, token_of

pytestmark = pytest.mark.django_db

# By operation: the scope that it takes; None: any.
SCOPES: dict[str, str | None] = {
    "me": None,
    "tokens": "admin",
    "token": "admin",
}
SCOPE_SETS = {
    "read": {"read"},
    "write": {"read", "write"},
    "ingest": {"ingest"},
    "admin": {"read", "write", "ingest", "admin"},
}
# What the role allows, whatever the token says.
OF_ROLE = {
    Role.VIEWER: {"read"},
    Role.MEMBER: {"read", "write", "ingest"},
    Role.ADMIN: {"read", "write", "ingest", "admin"},
    Role.OWNER: {"read", "write", "ingest", "admin"},
}
NOT_OPERATIONS = {"api_openapi": 200, "api_no_such_address": 404}


def operations() -> Iterator[tuple[str, str, str, Operation]]:
    """Name, method, address with its parameters, and the operation itself."""
    for router in api._get_bound_routers():
        for path, view in router.path_operations.items():
            for operation in view.operations:
                for method in operation.methods:
                    name = operation.view_func.__name__
                    yield name, method, f"{router.prefix}{path}", operation


def test_every_operation_has_a_row_and_every_row_an_operation() -> None:
    assert sorted(name for name, *_ in operations()) == sorted(SCOPES)


def test_every_operation_takes_the_scope_of_its_row() -> None:
    for name, _, _, operation in operations():
        taken = {auth.scope for auth in operation.auth_callbacks}
        assert all(isinstance(auth, Bearer) for auth in operation.auth_callbacks), name
        assert taken == {SCOPES[name]}, name


def test_every_address_is_behind_the_entrance() -> None:
    names = {pattern.name for pattern in urlpatterns}

    assert names == {f"api_{name}" for name in SCOPES} | set(NOT_OPERATIONS)
    for pattern in urlpatterns:
        assert pattern.callback.login_required is False, pattern.name


@pytest.fixture
def people(team: Team, alice: User, bob: User) -> dict[str, User]:
    found = {Role.OWNER: alice, Role.VIEWER: bob}
    for role in (Role.MEMBER, Role.ADMIN):
        found[role] = User.objects.create_user(f"the-{role}")
        Membership.objects.create(team=team, user=found[role], role=role)
    return {str(role): user for role, user in found.items()}


@pytest.fixture
def addresses(team: Team, alice: User) -> dict[str, str]:
    """Of every operation, with the numbers of things that are there."""
    known = known_things(team, alice)
    return {name: path.format(**known) for name, _, path, _ in operations()}


def known_things(team: Team, user: User) -> dict[str, int | str]:
    return {"token_id": token_of(make_token(user, name="known")).pk}


@pytest.fixture(autouse=True)
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_OF_TOKEN", 10**6)
    monkeypatch.setattr(limits, "MAX_OF_INGEST", 10**6)
    monkeypatch.setattr(limits, "MAX_OF_ADDRESS", 10**6)


def ask_all(program: Program, addresses: dict[str, str]) -> dict[str, int]:
    """The status of each operation, asked without a body."""
    return {
        name: program.ask(method, addresses[name]).status_code
        for name, method, _, _ in operations()
    }


def test_nobody_asks_without_a_token(addresses: dict[str, str]) -> None:
    assert set(ask_all(Program(), addresses).values()) == {401}


def test_a_session_is_no_token(addresses: dict[str, str], alice: User) -> None:
    program = Program()
    program.client.force_login(alice)

    assert set(ask_all(program, addresses).values()) == {401}


@pytest.mark.parametrize("role", OF_ROLE)
@pytest.mark.parametrize("scope", SCOPE_SETS)
def test_scope_and_role_decide_together(
    role: Role, scope: str, addresses: dict[str, str], people: dict[str, User]
) -> None:
    user = people[role]
    may = SCOPE_SETS[scope] & OF_ROLE[role]
    if scope not in OF_ROLE[role]:
        with pytest.raises(ValueError, match="does not allow the scope"):
            make_token(user, scope)
        # One that was made while the role was another.
        text = make_token(user)
        token = token_of(text)
        token.scopes = [scope]
        token.save()
    else:
        text = make_token(user, scope)

    found = ask_all(Program(text), addresses)

    for name, status in found.items():
        is_allowed = SCOPES[name] in {None, *may}
        assert (status != 403) == is_allowed, (name, status)
        assert status not in (401, 404, 405), (name, status)
        assert status < 500, (name, status)


def test_another_teams_things_are_not_found(
    addresses: dict[str, str], charlie: User
) -> None:
    program = Program(make_token(charlie, "admin"))

    for name, method, path, _ in operations():
        if "{" in path:
            tree = BODIES.get(name)
            status = program.ask(method, addresses[name], tree).status_code
            assert status == 404, (name, status)


# What operations need before they look for what the address names.
BODIES: dict[str, object] = {}
