"""Datasets of one row, and of one row many times."""

from django.test import Client

from dashboard.datasets.models import DatasetVersion
from tests.dashboard.datasets.test_upload import MAPPING, RECORDS, jsonl, upload


def imported(client: Client, records: list[dict[str, object]]) -> DatasetVersion:
    url = upload(client, jsonl(records), "rows.jsonl")
    assert client.post(url, MAPPING).status_code == 302
    return DatasetVersion.objects.get()


def test_one_row_is_a_dataset(alice_client):
    version = imported(alice_client, RECORDS[:1])

    page = alice_client.get(f"/alpha/datasets/{version.dataset_id}/")

    assert version.num_rows == 1
    assert "2+2?" in page.text


def test_the_same_row_a_hundred_times_is_counted_as_duplicates(alice_client):
    version = imported(alice_client, RECORDS[:1] * 100)

    page = alice_client.get(f"/alpha/datasets/{version.dataset_id}/statistics")

    assert version.num_rows == 100
    assert "99" in page.text
