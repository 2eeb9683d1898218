"""Queries that Django writes once give what they give when it writes them each time."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.db.models import Count, F
from django.test.utils import CaptureQueriesContext

from dashboard.accounts.models import Membership, Team, User
from dashboard.project.database import FixedQuery, fetch_all

pytestmark = pytest.mark.django_db


def in_teams(user: User, *slugs: str) -> list[Membership]:
    teams = [Team.objects.create(slug=slug, name=slug.upper()) for slug in slugs]
    return [Membership.objects.create(user=user, team=team) for team in teams]


@pytest.fixture
def people() -> list[User]:
    made = [get_user_model().objects.create_user(name) for name in ("ann", "bob")]
    in_teams(made[0], "red", "blue")
    in_teams(made[1], "green")
    return made


def test_objects_with_what_they_refer_to(people):
    of_user = FixedQuery(
        lambda user: (
            Membership.objects.filter(user=user)
            .select_related("team")
            .annotate(of=F("user__username"))
            .defer("created_at")
            .order_by("team__name")
        )
    )

    for person, names in zip(people, (["BLUE", "RED"], ["GREEN"]), strict=True):
        with CaptureQueriesContext(
            connection,
        ) as asked:
            found = of_user(person.pk)
            shown = [(each.team.name, each.of) for each in found]
        assert shown == [(name, person.username) for name in names]
        assert len(asked) == 1
        assert found[0].get_deferred_fields() == {"created_at"}
    assert of_user(0) == []
    assert of_user.first(0) is None


def test_values_in_any_order_and_more_than_once(people):
    between = FixedQuery(
        lambda low, high: (
            User.objects.filter(pk__lte=high, pk__gte=low)
            .exclude(pk=low)
            .order_by("pk")
            .values_list("username", flat=True)
        )
    )
    ann, bob = people

    assert between(ann.pk, bob.pk) == ["bob"]
    assert between(ann.pk - 1, bob.pk) == ["ann", "bob"]
    assert between(bob.pk, ann.pk) == []


def test_rows_of_columns(people):
    numbers = User.objects.values("username").annotate(num=Count("memberships"))
    counted = FixedQuery(lambda user: numbers.filter(pk=user))
    listed = User.objects.annotate(num=Count("memberships"))
    pairs = FixedQuery(
        lambda user: listed.filter(pk=user).values_list("username", "num")
    )

    assert counted(people[0].pk) == [{"username": "ann", "num": 2}]
    assert pairs.first(people[1].pk) == ("bob", 1)


@pytest.mark.django_db(transaction=True)
def test_threads_use_their_own_connections(people):
    names = FixedQuery(
        lambda user: User.objects.filter(pk=user).values_list("username", flat=True)
    )

    def ask(person: User) -> bool:
        try:
            return all(names(person.pk) == [person.username] for _ in range(50))
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, people * 4))


def test_constants_are_written_into_the_statement(people):
    odd = get_user_model().objects.create_user("o@d").pk
    User.objects.filter(pk=odd).update(username="o'd%s")
    since = FixedQuery(
        lambda user: User.objects.filter(
            pk__gte=user, username__in=["o'd%s", "ann"], is_active=True
        ).values_list("username", flat=True)
    )

    assert since(odd) == ["o'd%s"]
    assert sorted(since(people[0].pk)) == ["ann", "o'd%s"]


def test_a_connection_prepares_a_statement_once(people, monkeypatch):
    emails = FixedQuery(
        lambda user: User.objects.filter(pk=user).values_list("email", flat=True)
    )
    monkeypatch.setattr(connection.connection, "prepare_threshold", 5)

    for person in people * 4:
        assert emails(person.pk) == [""]

    prepared = fetch_all("SELECT generic_plans FROM pg_prepared_statements")
    assert len(prepared) == 1
    assert prepared[0][0] == 3
