"""An upload without free space is refused and leaves no partial file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from dashboard.datasets import limits
from dashboard.datasets.models import Upload
from tests.faults.small_disk import MEBIBYTE, fill, make_room, small_disk

pytestmark = [pytest.mark.faults, pytest.mark.django_db]
UPLOADS = "/alpha/datasets/uploads"
LINE = b'{"question": "What is 6 times 7?", "answer": "42"}\n'
CONTENT = LINE * (3 * MEBIBYTE // len(LINE))


@pytest.fixture
def disk(settings, tmp_path, team) -> Iterator[Path]:
    with small_disk(tmp_path / "data", mebibytes=16) as disk:
        settings.COHORT_DATA = disk
        yield disk


def begin(client: Client) -> Any:
    data = {"filename": "a.jsonl", "num_bytes": len(CONTENT), "fingerprint": "a-1"}
    return client.post(UPLOADS, data)


def send(client: Client, upload_id: int, *, offset: int) -> Any:
    part = CONTENT[offset : offset + 2 * MEBIBYTE]
    address = f"{UPLOADS}/{upload_id}/parts?offset={offset}"
    return client.generic("POST", address, part, "application/octet-stream")


def test_an_upload_larger_than_the_free_space_is_refused_early(alice_client, disk):
    answer = begin(alice_client)

    assert answer.status_code == 422
    for text in ("16 MiB", "a.jsonl", "3 MiB"):
        assert text in answer.json()["error"]
    assert not [path for path in disk.rglob("*") if path.is_file()]


def test_a_part_on_a_full_disk_leaves_no_partial_file(alice_client, disk, monkeypatch):
    # Another process has filled the disk after the check.
    monkeypatch.setattr(limits, "RESERVED_BYTES", -(2**40))
    upload_id = begin(alice_client).json()["id"]
    assert send(alice_client, upload_id, offset=0).status_code == 200
    fill(disk, leave=MEBIBYTE // 2)

    refused = send(alice_client, upload_id, offset=2 * MEBIBYTE)

    assert refused.status_code == 507
    assert str(disk) in refused.json()["error"]
    stored = Upload.objects.get().path
    assert stored.read_bytes() == CONTENT[: 2 * MEBIBYTE]

    make_room(disk)
    response = send(alice_client, upload_id, offset=2 * MEBIBYTE)
    assert response.json()["received"] == len(CONTENT)
    assert stored.read_bytes() == CONTENT
