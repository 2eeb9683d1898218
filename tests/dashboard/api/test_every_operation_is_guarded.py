"""Who gets which answer from every operation: a new one without a row fails here."""

import itertools
from collections.abc import Iterator

import pytest
from ninja.operation import Operation

from dashboard.accounts.models import Membership, Role, User
from dashboard.alerts.models import Alert
from dashboard.api.auth import Access, Bearer
from dashboard.api.models import ApiToken
from dashboard.api.v1 import api
from dashboard.runs.models import Run, TeamPreset
from dashboard.urls import api_patterns
from tests.dashboard.api.asking import Program, make_token, token_of
from tests.dashboard.api.known_things import known_things
from tests.dashboard.api.rows_of_operations import (
    ABSENT,
    BODIES,
    NOT_OPERATIONS,
    OF_ALL,
    OF_RUNS,
    QUERIES,
    REMOVING,
    SCOPES,
)
from tests.dashboard.completions.factories import RULES

pytestmark = pytest.mark.django_db

SCOPE_SETS = {
    "read": {"read"},
    "write": {"read", "write"},
    "ingest": {"ingest"},
    "admin": {"read", "write", "ingest", "admin"},
}
# What the role allows, for any token.
OF_ROLE = {
    Role.VIEWER: {"read"},
    Role.MEMBER: {"read", "write", "ingest"},
    Role.ADMIN: {"read", "write", "ingest", "admin"},
    Role.OWNER: {"read", "write", "ingest", "admin"},
}
# Of the whole server: what another team's admin gets.
SHARED = {"drain_worker": 403, "preset": 200}
# Of one person: another of the team does not find it.
OWN = {
    *("send_dataset_part",),
}


def operations() -> Iterator[tuple[str, str, str, Operation]]:
    """Name, method, address with its parameters, and the operation itself."""
    for router in api._get_bound_routers():
        for path, view in router.path_operations.items():
            for operation in view.operations:
                for method in operation.methods:
                    name = operation.view_func.__name__
                    yield name, method, f"{router.prefix}{path}", operation


def test_every_operation_has_a_row_and_every_row_an_operation():
    assert sorted(name for name, *_ in operations()) == sorted(SCOPES)


def test_every_operation_takes_the_scope_of_its_row():
    for name, _, _, operation in operations():
        taken = {auth.scope for auth in operation.auth_callbacks}
        assert all(isinstance(auth, Bearer) for auth in operation.auth_callbacks), name
        assert taken == {SCOPES[name]}, name


def test_every_address_is_guarded():
    names = {str(pattern.name) for pattern in api_patterns}

    assert names == {f"api_{name}" for name in SCOPES} | set(NOT_OPERATIONS)
    for pattern in api_patterns:
        assert pattern.callback.login_required is False, pattern.name


@pytest.fixture
def people(team, alice, bob) -> dict[str, User]:
    found = {Role.OWNER: alice, Role.VIEWER: bob}
    for role in (Role.MEMBER, Role.ADMIN):
        found[role] = User.objects.create_user(f"the-{role}")
        Membership.objects.create(team=team, user=found[role], role=role)
    return {str(role): user for role, user in found.items()}


@pytest.fixture
def addresses(team, alice) -> dict[str, str]:
    """Of every operation, with the numbers of things that are there."""
    known = known_things(team, alice)
    return {
        name: (path + QUERIES.get(name, "")).format(**known)
        for name, _, path, _ in operations()
    }


def token_with(user: User, role: str, scope: str) -> str:
    """Also one that was made while the role was another."""
    if scope in OF_ROLE[Role(role)]:
        return make_token(user, scope)
    with pytest.raises(ValueError, match=scope):
        make_token(user, scope)
    text = make_token(user)
    token = token_of(text)
    token.scopes = [scope]
    token.save()
    return text


def test_a_token_may_do_what_both_its_scope_and_its_role_allow():
    for role, scope in itertools.product(OF_ROLE, SCOPE_SETS):
        access = Access(
            token=ApiToken(scopes=[scope]), membership=Membership(role=role)
        )

        assert access.scopes == SCOPE_SETS[scope] & OF_ROLE[role], (role, scope)


def test_a_lower_role_removes_scopes_from_a_token(people):
    """Of an owner's, so that the person may ask anything again once promoted."""
    program = Program(token_with(people[Role.VIEWER], Role.VIEWER, "admin"))

    assert program.get("/me").json()["scopes"] == ["read"]
    assert program.post("/alert-rules").status_code == 403


# By an operation's scope: the least that may ask it, and the most that may not.
LEAST: dict[str | None, tuple[Role, str]] = {
    None: (Role.VIEWER, "read"),
    "read": (Role.VIEWER, "read"),
    "ingest": (Role.MEMBER, "ingest"),
    "write": (Role.MEMBER, "write"),
    "admin": (Role.ADMIN, "admin"),
}
MOST: dict[str | None, tuple[Role, str]] = {
    "read": (Role.OWNER, "ingest"),
    "ingest": (Role.OWNER, "write"),
    "write": (Role.VIEWER, "admin"),
    "admin": (Role.MEMBER, "admin"),
}


def programs(
    people: dict[str, User], table: dict[str | None, tuple[Role, str]]
) -> dict[str, Program]:
    """By operation."""
    by_pair = {
        pair: Program(token_with(people[pair[0]], *pair)) for pair in table.values()
    }
    return {
        name: by_pair[table[scope]] for name, scope in SCOPES.items() if scope in table
    }


def test_only_sufficient_scopes_get_a_response(addresses, people, charlie):
    """Each operation is called without a body by every allowed role;

    deletions come last.
    """
    session = Program()  # a session is no token
    session.client.force_login(people[Role.OWNER])
    non_member = Program(make_token(charlie, "admin"))
    least, most = programs(people, LEAST), programs(people, MOST)
    wrong = {}

    for name, method, path, _ in sorted(operations(), key=lambda one: _turn(*one[:2])):
        address = addresses[name]
        found = {"nobody": session.ask(method, address).status_code}
        expected = {"nobody": 401}
        if name in most:
            found["most"] = most[name].ask(method, address).status_code
            expected["most"] = 403
        if "{" in path:
            found["stranger"] = _ask(non_member, name, method, address)
            expected["stranger"] = SHARED.get(name, 404)
        if found != expected:
            wrong[name] = found
        status = least[name].ask(method, address).status_code
        is_absent = status == 404 and name not in ABSENT | OWN
        if status in (401, 403, 405) or is_absent or status >= 500:
            wrong[name] = found | {"least": status}

    assert wrong == {}
    assert Program().get("/me").status_code == 401


def _turn(name: str, method: str) -> int:
    if name == "revoke_own_token":
        return 3  # last, since it takes the sender's access away
    return 2 if name in REMOVING else int(method == "DELETE")


def _ask(program: Program, name: str, method: str, address: str) -> int:
    return program.ask(method, address, BODIES.get(name)).status_code


def test_numbers_in_a_body_are_looked_for_in_the_team_too(addresses, team, charlie):
    """Missing objects are rejected, whether another team's or non-existent."""
    run = team.runs.get(source={})
    assert run.dataset_version
    dataset_id = run.dataset_version.dataset_id
    preset = TeamPreset.objects.create(team=team, name="Ours", config=run.config)
    program = Program(make_token(charlie, "admin"))
    requested: dict[str, list[dict[str, object]]] = {
        "/questions": [{"run_id": run.pk, "text": "?", "judge": "judge"}],
        "/rescorings": [{"run_id": run.pk}],
        "/alert-rules": [{"metric": "m", "kind": "missing", "run_id": run.pk}],
        "/dataset-fetches": [{"link": "a/b", "dataset_id": dataset_id}],
        "/dataset-uploads": [
            {
                "filename": "f",
                "num_bytes": 1,
                "fingerprint": "f",
                "dataset_id": dataset_id,
            }
        ],
        "/recipes/check": [
            {"spec": {"rules": RULES}, "dataset_version_id": run.dataset_version_id}
        ],
    }
    launches: list[dict[str, object]] = [
        {"start": f"run-{run.pk}"},
        {"start": f"team:{preset.pk}"},
        {"dataset_version_id": run.dataset_version_id},
        {"recipe_version_id": run.recipe_version_id},
        {"evaluation_sets": [{"dataset_version_id": run.dataset_version_id}]},
    ]
    swept = {"sweep": [{"setting": "seed", "values": ["0..2"]}]}
    for path in ("/launches", "/launches/check", "/probes"):
        requested[path] = launches
    requested["/sweeps"] = [launch | swept for launch in launches]

    for path, bodies in requested.items():
        for body in bodies:
            assert program.post(path, body).status_code in (404, 422), (path, body)
    for address in (
        f"/compare?runs={run.pk}",
        f"/compare/curves?runs={run.pk}",
        f"/compare/sweep?runs={run.pk}",
        f"/compare/sweep?sweep_id={team.sweep_set.get().pk}",
        f"/alerts?run_id={run.pk}",
    ):
        assert program.get(address).status_code == 404, address
    alert = Alert.objects.get()
    assert program.get(f"/alerts?rule_id={alert.rule_id}").status_code == 404
    assert Run.objects.count() == 2


def test_lists_hold_only_the_teams_own(addresses, charlie):
    program = Program(make_token(charlie, "admin"))

    for name, method, path, _ in operations():
        if method == "GET" and "{" not in path and name not in OF_ALL | OF_RUNS:
            found = program.get(path).json()
            assert found.get("total", 0) == len(found.get("items", [])), name
            assert found["items"] == [], name
