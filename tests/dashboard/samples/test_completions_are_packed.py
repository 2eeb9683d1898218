"""A database with a row a completion becomes one with a row a group, and back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.migrations.executor import MigrationExecutor

from dashboard.accounts.models import Team, User
from dashboard.insights.models import Vote
from dashboard.samples.models import Group, GroupCompletions
from tests.dashboard.samples.factories import make_group, make_run
from tests.dashboard.samples.stored import change_completions

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
# Of two completions the first one's id becomes the larger one.
SWAP = """
UPDATE insights_vote
   SET first_id = second_id, second_id = first_id + 1000, choice = 'second';
UPDATE samples_completion SET id = id + 1000 WHERE group_id = %s
"""
BEFORE = [("samples", "0014_values_an_import_lacks"), ("insights", "0001_votes")]


@pytest.fixture(autouse=True)
def _the_newest_afterwards() -> Iterator[None]:
    yield
    migrate_to_the_newest()


@pytest.fixture
def groups(team: Team) -> list[Group]:
    run = make_run(team)
    first = make_group(run, step=1, rewards=(1.2, None, 0.2), texts=["a", "é\\,{", '"'])
    lacking = make_group(run, step=1, prompt_index=1, rewards=(None, 0.5))
    change_completions(
        lacking,
        position=0,
        num_tokens=None,
        advantage=None,
        mean_logprob=None,
        rule_scores=[None, math.inf],
    )
    other = make_group(run, step=2, rewards=(1.0,) * 9, rule_names=[])
    make_group(run, step=3, rewards=())  # whose completions retention has deleted
    GroupCompletions.objects.filter(group__step=3).delete()
    return [first, lacking, other]


def stored() -> list[dict[str, Any]]:
    return list(GroupCompletions.objects.order_by("pk").values())


def migrate(*targets: tuple[str, str]) -> None:
    MigrationExecutor(connection).migrate(list(targets))


def migrate_to_the_newest() -> None:
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())


def rows(query: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchall()


def test_completions_come_back_as_they_were(groups: list[Group]) -> None:
    before = stored()

    migrate(*BEFORE)
    texts = rows("SELECT text FROM samples_completion ORDER BY group_id, position")
    scores = rows(
        "SELECT rule_scores FROM samples_completion ORDER BY group_id, position"
    )
    migrate_to_the_newest()

    assert [text for (text,) in texts[:3]] == ["a", "é\\,{", '"']
    assert [each for (each,) in scores[3:6]] == [[None, math.inf], [0.0, 2.5], []]
    assert len(before) == 3
    assert stored() == before


def test_what_was_broken_off_goes_on(
    groups: list[Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stored()
    migrate(*BEFORE)
    migrate(("samples", "0015_group_completions"))
    module = import_module("dashboard.samples.migrations.0016_pack_completions")
    monkeypatch.setattr(module, "GROUPS_AT_A_TIME", 1)
    with connection.cursor() as cursor:
        cursor.execute(module.PACK, [0, groups[0].pk])

    migrate_to_the_newest()

    assert stored() == before


def test_what_came_in_meanwhile_is_packed_before_the_table_goes(
    groups: list[Group],
) -> None:
    before = stored()
    migrate(*BEFORE)
    migrate(("samples", "0017_unpack_backwards"))
    GroupCompletions.objects.filter(group=groups[1]).delete()

    migrate_to_the_newest()

    assert stored() == before


@pytest.mark.parametrize("is_swapped", [False, True])
def test_votes_are_of_the_same_completions(
    groups: list[Group], team: Team, alice: User, *, is_swapped: bool
) -> None:
    Vote.objects.create(
        team=team,
        voter=alice,
        first_group=groups[0],
        first_position=2,
        second_group=groups[1],
        second_position=0,
        choice="first",
    )
    before = list(Vote.objects.values())
    migrate(*BEFORE)
    if is_swapped:  # rows were written in another order than their groups'
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(SWAP, [groups[0].pk])
    migrate_to_the_newest()

    assert list(Vote.objects.values()) == before
