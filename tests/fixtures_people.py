"""Users of two teams, and signed-in Django clients."""

from __future__ import annotations

import pytest
from django.test import Client

from dashboard.accounts.models import Membership, Role, Team, User
from tests.page_client import PageClient


def _join(team: Team, username: str, role: Role) -> User:
    user = User.objects.create_user(username, display_name=username.title())
    Membership.objects.create(team=team, user=user, role=role)
    return user


def _sign_in(user: User) -> Client:
    client = PageClient()
    client.force_login(user)
    return client


@pytest.fixture
def team(db: None) -> Team:
    return Team.objects.create(slug="alpha", name="Alpha")


@pytest.fixture
def alice(team: Team) -> User:
    """Owner of the team."""
    return _join(team, "alice", Role.OWNER)


@pytest.fixture
def bob(team: Team) -> User:
    """Viewer of the team."""
    return _join(team, "bob", Role.VIEWER)


@pytest.fixture
def charlie(db: None) -> User:
    """Owner of another team."""
    other = Team.objects.create(slug="other", name="Other")
    return _join(other, "charlie", Role.OWNER)


@pytest.fixture
def alice_client(alice: User) -> Client:
    return _sign_in(alice)


@pytest.fixture
def bob_client(bob: User) -> Client:
    return _sign_in(bob)


@pytest.fixture
def charlie_client(charlie: User) -> Client:
    return _sign_in(charlie)
