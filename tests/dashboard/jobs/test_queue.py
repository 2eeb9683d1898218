"""What pages ask for is done one at a time, and whoever asks for much waits longer."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.datasets import background
from dashboard.datasets.background import (
    do_what_waits,
    forget_what_was_done,
    put_in_line,
)
from dashboard.datasets.models import DatasetVersion, QueuedTask, VersionLeak
from dashboard.datasets.row import Row
from dashboard.datasets.rows import reading
from dashboard.datasets.services import create_dataset_version
from dashboard.datasets.tasks import MAKERS

NAME = "datasets.make_leak"


def work(worker: str = "default@here") -> list[int]:
    """What was done, in order."""
    done: list[int] = []
    do_what_waits({NAME: done.append}, worker=worker, is_shutting_down=bool)
    return done


@pytest.fixture
def late(db: None) -> Team:
    return Team.objects.create(slug="late", name="Late")


@pytest.fixture
def versions(team: Team, monkeypatch: pytest.MonkeyPatch) -> list[DatasetVersion]:
    """However few their rows, a worker looks through them."""
    monkeypatch.setattr(reading, "MAX_ROWS_OF_PAGE", 0)
    return [
        create_dataset_version(
            team=team,
            name=f"Sums {n}",
            rows=[Row(prompt=f"{n} plus 4?")],
            mapping={},
            source={},
            user=None,
        )
        for n in range(4)
    ]


def leaks_page(client: Client, held_out: DatasetVersion, other: DatasetVersion) -> str:
    address = f"/alpha/datasets/{held_out.dataset_id}/leaks"
    return client.get(address, {"against": other.pk}).text


def test_a_team_that_opens_many_pages_waits_behind_others(team: Team, late: Team):
    for pk in range(4):
        put_in_line(NAME, pk, team_id=team.pk)
    for pk in (10, 11):
        put_in_line(NAME, pk, team_id=late.pk)

    assert work() == [0, 10, 1, 11, 2, 3]


def test_who_was_served_lately_comes_later(team: Team, late: Team):
    put_in_line(NAME, 1, team_id=team.pk)
    assert work() == [1]

    put_in_line(NAME, 2, team_id=team.pk)
    put_in_line(NAME, 3, team_id=late.pk)

    assert work() == [3, 2]


def test_what_waits_already_is_not_put_in_line_again(team: Team):
    assert [put_in_line(NAME, pk, team_id=team.pk) for pk in (1, 2, 1)] == [1, 2, 1]

    assert work() == [1, 2]
    assert put_in_line(NAME, 1, team_id=team.pk) == 1  # as a page does that lost it
    assert work() == [1]


def test_of_a_team_few_wait_and_the_page_says_so(
    bob_client: Client,
    versions: list[DatasetVersion],
    late: Team,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(background, "MAX_OF_A_TEAM", 2)
    first, *others = versions

    pages = [leaks_page(bob_client, first, other) for other in others]

    assert "number 1" in pages[0]
    assert "number 2" in pages[1]
    assert "2 others" in pages[2]
    assert QueuedTask.objects.count() == 2
    assert put_in_line(NAME, 1_000, team_id=late.pk) == 1


def test_a_page_that_waits_gets_a_place_once_there_is_one(
    bob_client: Client,
    versions: list[DatasetVersion],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(background, "MAX_OF_A_TEAM", 1)
    leaks_page(bob_client, versions[0], versions[1])
    leaks_page(bob_client, versions[0], versions[2])

    do_what_waits(MAKERS, worker="default@here", is_shutting_down=bool)
    page = leaks_page(bob_client, versions[0], versions[2])

    assert "number 1" in page
    do_what_waits(MAKERS, worker="default@here", is_shutting_down=bool)
    assert all(found.is_done for found in VersionLeak.objects.all())


def test_a_fault_holds_up_nothing_else(team: Team, caplog: pytest.LogCaptureFixture):
    for pk in (1, 2):
        put_in_line(NAME, pk, team_id=team.pk)
    done = []

    def make(pk: int) -> None:
        if pk == 1:
            raise RuntimeError("a fault")
        done.append(pk)

    do_what_waits({NAME: make}, worker="default@here", is_shutting_down=bool)

    assert done == [2]
    assert f"{NAME} of 1 " in caplog.text
    assert work() == []


@pytest.mark.django_db(transaction=True)
def test_a_worker_does_one_at_a_time_and_another_worker_one_more(team: Team):
    for pk in (1, 2, 3):
        put_in_line(NAME, pk, team_id=team.pk)
    beside: list[list[int]] = []

    def in_another_slot(worker: str) -> None:
        beside.append(work(worker))
        connection.close()

    def make(pk: int) -> None:
        if pk > 1:
            return
        for worker in ("default@here", "default@there"):
            slot = threading.Thread(target=in_another_slot, args=(worker,))
            slot.start()
            slot.join()

    do_what_waits({NAME: make}, worker="default@here", is_shutting_down=bool)

    assert beside == [[], [2, 3]]
    put_in_line(NAME, 4, team_id=team.pk)
    assert work() == [4]  # the lock was let go of


def test_what_was_done_is_forgotten_after_a_day(team: Team):
    for pk in (1, 2):
        put_in_line(NAME, pk, team_id=team.pk)
    work()
    put_in_line(NAME, 3, team_id=team.pk)
    long_ago = Now() - timedelta(days=2)
    QueuedTask.objects.filter(target=1).update(taken_at=long_ago)

    forget_what_was_done()

    assert set(QueuedTask.objects.values_list("target", flat=True)) == {2, 3}
