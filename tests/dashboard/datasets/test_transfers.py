"""Uploads in parts."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client

from dashboard.accounts.models import Membership, Role, User
from dashboard.datasets.imports import purge_uploads
from dashboard.datasets.limits import MAX_UPLOAD_BYTES, PART_BYTES
from dashboard.datasets.models import DatasetRow, Upload
from tests.dashboard.datasets.test_upload import FILES, MAPPING
from tests.environment import run_threads

CONTENT = FILES["sums.jsonl"]
UPLOADS = "/alpha/datasets/uploads"
SUMS = {"filename": "sums.jsonl", "num_bytes": len(CONTENT), "fingerprint": "aa-1"}


def begin(client: Client, query: str = "", **changes: Any) -> Any:
    return client.post(f"{UPLOADS}{query}", {**SUMS, **changes})


def send(client: Client, upload_id: int, offset: object, part: bytes) -> Any:
    return client.generic(
        "POST",
        f"{UPLOADS}/{upload_id}/parts?offset={offset}",
        part,
        "application/octet-stream",
    )


def finish(client: Client, upload_id: int) -> Any:
    return client.post("/alpha/datasets/upload", {"upload": upload_id})


def test_parts_become_a_dataset(alice_client):
    body = begin(alice_client).json()
    assert (body["received"], body["is_whole"]) == (0, False)

    assert send(alice_client, body["id"], 0, CONTENT[:40]).json()["received"] == 40
    assert send(alice_client, body["id"], 40, CONTENT[40:]).status_code == 200
    answer = finish(alice_client, body["id"])

    assert answer["Location"] == f"{UPLOADS}/{body['id']}"
    upload = Upload.objects.get()
    assert (upload.is_whole, upload.format) == (True, "jsonl")
    assert alice_client.post(answer["Location"], MAPPING).status_code == 302
    assert DatasetRow.objects.count() == 2


def test_an_upload_of_the_same_file_resumes(alice_client):
    first = begin(alice_client).json()
    send(alice_client, first["id"], 0, CONTENT[:30])

    again = begin(alice_client).json()

    assert (again["id"], again["received"]) == (first["id"], 30)


def test_a_different_file_starts_a_new_upload(alice_client):
    changes = (
        {"filename": "other.jsonl"},
        {"num_bytes": len(CONTENT) + 1},
        {"fingerprint": "aa-2"},
    )
    begun = [begin(alice_client, **change).json()["id"] for change in ({}, *changes)]

    assert len(set(begun)) == 4


def test_uploads_of_two_users_are_separate(alice_client, team):
    dora = User.objects.create_user("dora")
    Membership.objects.create(team=team, user=dora, role=Role.MEMBER)
    client = Client()
    client.force_login(dora)
    first = begin(alice_client).json()

    assert begin(client).json()["id"] != first["id"]
    assert send(client, first["id"], 0, CONTENT).status_code == 404


def test_a_part_at_a_wrong_offset_gets_the_right_one(alice_client):
    upload_id = begin(alice_client).json()["id"]
    send(alice_client, upload_id, 0, CONTENT[:30])

    for offset in (0, 29, 31):
        answer = send(alice_client, upload_id, offset, CONTENT[offset:])

        assert answer.status_code == 409
        assert answer.json()["received"] == 30
    assert Upload.objects.get().path.read_bytes() == CONTENT[:30]
    body = alice_client.get(f"{UPLOADS}/{upload_id}/parts").json()
    assert body["received"] == 30


def test_an_invalid_part_is_refused(alice_client):
    upload_id = begin(alice_client).json()["id"]

    for offset, part in (
        (0, CONTENT + b"x"),
        (0, b""),
        *((offset, CONTENT) for offset in ("", "-1", "٣", "9" * 30)),
    ):
        answer = send(alice_client, upload_id, offset, part)

        assert answer.status_code == 422
        assert answer.json()["code"] == "datasets.invalid_part"
    assert Upload.objects.get().num_received == 0


def test_a_part_has_a_largest_size(alice_client):
    upload_id = begin(alice_client, num_bytes=PART_BYTES + 1).json()["id"]

    answer = send(alice_client, upload_id, 0, b"x" * (PART_BYTES + 1))

    assert answer.status_code == 422


def test_an_invalid_upload_is_refused(alice_client):
    for change, code in (
        ({"num_bytes": 0}, "datasets.file_empty"),
        ({"num_bytes": MAX_UPLOAD_BYTES + 1}, "datasets.file_too_large"),
        ({"num_bytes": "x"}, "invalid"),
        ({"num_bytes": -1}, "invalid"),
        ({"filename": ""}, "invalid"),
        ({"fingerprint": "x" * 65}, "invalid"),
    ):
        answer = begin(alice_client, **change)

        assert answer.status_code == 422
        assert answer.json()["code"] == code
    assert Upload.objects.count() == 0


def test_a_full_disk_refuses_an_upload_at_its_start(alice_client, monkeypatch):
    upload_id = begin(alice_client).json()["id"]
    monkeypatch.setattr("dashboard.datasets.limits.RESERVED_BYTES", 2**60)

    for answer in (
        begin(alice_client, filename="b"),
        send(alice_client, upload_id, 0, CONTENT),
    ):
        assert answer.status_code == 422
        assert answer.json()["code"] == "disk_full"
    form = alice_client.post("/alpha/datasets/upload", {"rows": "a,b\n1,2\n"})
    assert form.context["paste"].has_error("rows", "disk_full")


def test_a_team_has_a_maximum_size_of_uploads(alice_client, monkeypatch):
    monkeypatch.setattr("dashboard.datasets.uploads.MAX_TEAM_BYTES", 2 * len(CONTENT))
    begin(alice_client)
    begin(alice_client, filename="b")

    answer = begin(alice_client, filename="c")

    assert answer.status_code == 422
    assert answer.json()["code"] == "datasets.too_many_uploads"
    assert begin(alice_client).status_code == 200, "what was begun may go on"


def test_a_team_has_a_maximum_number_of_uploads(alice_client, monkeypatch):
    monkeypatch.setattr("dashboard.datasets.uploads.MAX_TEAM_UPLOADS", 1)
    begin(alice_client)

    assert begin(alice_client, filename="c").status_code == 422


def test_an_incomplete_upload_cannot_be_mapped(alice_client):
    upload_id = begin(alice_client).json()["id"]
    send(alice_client, upload_id, 0, CONTENT[:30])

    early = finish(alice_client, upload_id)

    assert early.status_code == 422
    assert early.context["form"].has_error("file", "datasets.upload_incomplete")
    page = alice_client.get(f"{UPLOADS}/{upload_id}")
    assert page["Location"] == "/alpha/datasets/upload"
    assert alice_client.post(f"{UPLOADS}/{upload_id}", MAPPING)["Location"] == (
        "/alpha/datasets/upload"
    )
    assert Upload.objects.count() == 1


def test_an_unfinished_upload_is_listed_and_can_be_discarded(alice_client):
    upload_id = begin(alice_client).json()["id"]
    send(alice_client, upload_id, 0, CONTENT[:30])

    page = alice_client.get("/alpha/datasets/upload").content.decode()
    assert f"30 B of {len(CONTENT)} B" in page
    path = Upload.objects.get().path
    alice_client.post(f"{UPLOADS}/{upload_id}", {"discard": "1"})

    assert Upload.objects.count() == 0
    assert not path.exists()


def test_an_unfinished_upload_is_deleted_after_a_week(alice_client):
    upload_id = begin(alice_client).json()["id"]
    send(alice_client, upload_id, 0, CONTENT[:30])
    path = Upload.objects.get().path
    Upload.objects.update(created_at=Now() - timedelta(days=8))

    purge_uploads()

    assert Upload.objects.count() == 0
    assert not path.exists()


def test_an_unsupported_file_in_parts_is_refused_and_deleted(alice_client):
    zipped = b"PK\x03\x04" + b"x" * 20
    upload_id = begin(alice_client, num_bytes=len(zipped)).json()["id"]
    send(alice_client, upload_id, 0, zipped)

    answer = finish(alice_client, upload_id)

    assert answer.status_code == 422
    assert answer.context["form"].has_error("file", "datasets.unsupported_format")
    assert Upload.objects.count() == 0


def test_a_file_without_a_valid_row_shows_its_errors(alice_client):
    bad = b"{not json}\n"
    upload_id = begin(alice_client, num_bytes=len(bad)).json()["id"]
    send(alice_client, upload_id, 0, bad)

    answer = finish(alice_client, upload_id)

    assert answer.status_code == 422
    assert answer.context["refusals"].count == 1
    assert Upload.objects.count() == 0


def test_it_becomes_a_version_of_the_dataset_it_was_sent_for(alice_client):
    first = begin(alice_client).json()["id"]
    send(alice_client, first, 0, CONTENT)
    alice_client.post(finish(alice_client, first)["Location"], MAPPING)
    dataset_id = DatasetRow.objects.first().version.dataset_id

    body = begin(alice_client, query=f"?dataset={dataset_id}").json()

    assert Upload.objects.get().dataset_id == dataset_id
    assert begin(alice_client).json()["id"] != body["id"]
    assert begin(alice_client, query="?dataset=999999").status_code == 404


def test_other_teams_and_viewers_cannot_upload(
    alice_client, bob_client, charlie_client
):
    upload_id = begin(alice_client).json()["id"]

    assert begin(bob_client).status_code == 403
    assert send(bob_client, upload_id, 0, CONTENT).status_code == 403
    assert begin(charlie_client).status_code == 404
    assert send(charlie_client, upload_id, 0, CONTENT).status_code == 404
    other = f"/other/datasets/uploads/{upload_id}/parts"
    assert charlie_client.get(other).status_code == 404
    assert charlie_client.post(f"{other}?offset=0").status_code == 404
    assert Upload.objects.get().num_received == 0


def test_an_upload_needs_a_csrf_token(alice, alice_client):
    upload_id = begin(alice_client).json()["id"]
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)

    assert send(client, upload_id, 0, CONTENT).status_code == 403


@pytest.mark.django_db(transaction=True)
def test_parts_sent_at_the_same_time_are_written_one_after_another(alice):
    """Eight requests append the same part; one succeeds, the others get a 409."""
    client = Client()
    client.force_login(alice)
    part = b"x" * 2**20
    upload_id = begin(client, num_bytes=2 * len(part)).json()["id"]
    found: list[int] = []

    def race() -> None:
        found.append(send(client, upload_id, 0, part).status_code)
        connection.close()

    threads = [threading.Thread(target=race) for _ in range(8)]
    run_threads(threads)

    assert sorted(found) == [200] + [409] * 7
    assert Upload.objects.get().num_received == len(part)


def test_pasted_rows_lead_to_the_mapping_page(alice_client):
    for rows, file_format in (
        ('{"question": "1+1?", "solution": "2"}\n' * 2, "jsonl"),
        ('{"question": "1+1?", "solution": "2"}', "jsonl"),
        ('[{"question": "1+1?", "solution": "2"}]', "json"),
        ("question,solution\r\n1+1?,2\r\n", "csv"),
        ("question;solution\n1+1?;2", "csv"),
        ('question\tsolution\n"1 + 1, please?"\t2\n', "tsv"),
    ):
        given = {"rows": rows}
        answer = alice_client.post("/alpha/datasets/upload", given, follow=True)

        upload = Upload.objects.latest("pk")
        assert (upload.format, upload.remark) == (file_format, "")
        form = answer.context["form"]
        assert form["prompt"].value() == "question"
        assert form["answer"].value() == "solution"
        assert form["name"].value() == "pasted rows"


def test_invalid_pasted_rows_are_refused(alice_client):
    for rows, code in (
        ("", "required"),
        ("hello", "datasets.unknown_format"),
        ("\x00", "null_characters_not_allowed"),
        ("x" * (2**21 + 1), "max_length"),
    ):
        answer = alice_client.post("/alpha/datasets/upload", {"rows": rows})

        assert answer.status_code == 422
        assert answer.context["paste"].has_error("rows", code)
    answer = alice_client.post("/alpha/datasets/upload", {"rows": '{"a": 1,}'})
    assert (answer.status_code, answer.context["refusals"].count) == (422, 1)
    assert Upload.objects.count() == 0
