"""A double click on Import: one import, and both clicks are led to it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from dashboard.accounts.models import User
from dashboard.datasets.models import DatasetVersion, ImportJob
from dashboard.datasets.views import mapping
from tests.dashboard.datasets.imports.test_upload import MAPPING, upload


@pytest.mark.django_db(transaction=True)
def test_two_clicks_at_once_make_one_import(alice: User, alice_client: Client):
    url = upload(alice_client)
    both = threading.Barrier(2)
    answers: list[Any] = []

    def click() -> None:
        client = Client()
        client.force_login(alice)
        both.wait()
        answers.append(client.post(url, MAPPING))
        connection.close()

    clicks = [threading.Thread(target=click) for _ in range(2)]
    for each in clicks:
        each.start()
    for each in clicks:
        each.join()

    assert [answer.status_code for answer in answers] == [302, 302]
    version = DatasetVersion.objects.get()
    job = ImportJob.objects.get()
    assert job.version == version
    places = {
        f"/alpha/datasets/{version.dataset_id}/",
        f"/alpha/datasets/imports/{job.pk}",
    }
    assert {answer.url for answer in answers} <= places


@pytest.mark.parametrize("is_read", [False, True])
def test_a_click_that_comes_as_the_first_ones_import_ends_is_led_to_it(
    alice_client: Client, monkeypatch: pytest.MonkeyPatch, is_read: bool
):
    url = upload(alice_client)
    peek, others = mapping.try_peek, ["the first click"]

    def peek_late(*args: Any) -> Any:
        """The first click's import is whole before, or just after, the file is read."""
        seen = peek(*args) if is_read or not others else None
        if others:
            others.pop()
            assert alice_client.post(url, MAPPING).status_code == 302
        return seen or peek(*args)

    monkeypatch.setattr(mapping, "try_peek", peek_late)

    answer = alice_client.post(url, MAPPING)

    assert answer.status_code == 302
    version = DatasetVersion.objects.get()
    assert ImportJob.objects.get().version == version
    page = alice_client.get(answer.url).content.decode()
    assert "Imported 2 rows" in page
    assert "no longer here" not in page
