"""Users of two teams, and signed-in Django clients.

A file shares their rows (tests/worlds.py); each test has objects of its own.
"""

from copy import deepcopy

import pytest
from django.test import Client

from dashboard.accounts.models import Membership, Role, Team, User
from tests.page_client import PageClient


def _make_team() -> Team:
    return Team.objects.create(slug="alpha", name="Alpha")


def _join(team: Team, username: str, role: Role) -> User:
    user = User.objects.create_user(username, display_name=username.title())
    Membership.objects.create(team=team, user=user, role=role)
    return user


def _make_charlie() -> User:
    other = Team.objects.create(slug="other", name="Other")
    return _join(other, "charlie", Role.OWNER)


def _sign_in(user: User) -> Client:
    client = PageClient()
    client.force_login(user)
    return client


def _continue(client: Client | None, shared: User | None, user: User) -> Client:
    """A session ends with its password, which a fixture may have set."""
    if client is None or shared is None or shared.password != user.password:
        return _sign_in(user)
    return deepcopy(client)


@pytest.fixture(scope="module")
def shared_team(shares_rows) -> Team | None:
    return _make_team() if shares_rows else None


@pytest.fixture(scope="module")
def shared_alice(shared_team) -> User | None:
    return _join(shared_team, "alice", Role.OWNER) if shared_team else None


@pytest.fixture(scope="module")
def shared_bob(shared_team) -> User | None:
    return _join(shared_team, "bob", Role.VIEWER) if shared_team else None


@pytest.fixture(scope="module")
def shared_charlie(shares_rows) -> User | None:
    return _make_charlie() if shares_rows else None


@pytest.fixture(scope="module")
def shared_alice_client(shared_alice) -> Client | None:
    return _sign_in(shared_alice) if shared_alice else None


@pytest.fixture(scope="module")
def shared_bob_client(shared_bob) -> Client | None:
    return _sign_in(shared_bob) if shared_bob else None


@pytest.fixture(scope="module")
def shared_charlie_client(shared_charlie) -> Client | None:
    return _sign_in(shared_charlie) if shared_charlie else None


@pytest.fixture
def team(shared_team, db) -> Team:
    return deepcopy(shared_team) or _make_team()


@pytest.fixture
def alice(shared_alice, team) -> User:
    """Owner of the team."""
    return deepcopy(shared_alice) or _join(team, "alice", Role.OWNER)


@pytest.fixture
def bob(shared_bob, team) -> User:
    """Viewer of the team."""
    return deepcopy(shared_bob) or _join(team, "bob", Role.VIEWER)


@pytest.fixture
def charlie(shared_charlie, db) -> User:
    """Owner of another team."""
    return deepcopy(shared_charlie) or _make_charlie()


@pytest.fixture
def alice_client(shared_alice_client, shared_alice, alice) -> Client:
    return _continue(shared_alice_client, shared_alice, alice)


@pytest.fixture
def bob_client(shared_bob_client, shared_bob, bob) -> Client:
    return _continue(shared_bob_client, shared_bob, bob)


@pytest.fixture
def charlie_client(shared_charlie_client, shared_charlie, charlie) -> Client:
    return _continue(shared_charlie_client, shared_charlie, charlie)
