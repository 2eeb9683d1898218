"""From an uploaded file to a version, or to its errors."""

import gzip
import io
import json
import threading
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.utils import timezone

from dashboard.datasets.limits import AT_ONCE_BYTES
from dashboard.datasets.models import (
    Dataset,
    DatasetRow,
    DatasetVersion,
    ImportJob,
    Upload,
)
from dashboard.datasets.parsing.records import Refusal, Refusals
from dashboard.pages import dataset_mapping
from tests.environment import run_threads

RECORDS = [
    {"question": "2+2?", "solution": "4", "level": 1},
    {"question": "3+3?", "solution": "6", "level": 2},
]
MAPPING = {
    "name": "Sums",
    "prompt": "question",
    "answer": "solution",
    "columns": ["level"],
}


def jsonl(records: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def parquet(records: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records), file)
    return file.getvalue()


FILES = {
    "sums.jsonl": jsonl(RECORDS),
    "sums.csv": b"question,solution,level\n2+2?,4,1\n3+3?,6,2\n",
    "sums.parquet": parquet(RECORDS),
}


def upload(
    client: Client,
    content: bytes = FILES["sums.jsonl"],
    name: str = "sums.jsonl",
    query: str = "",
) -> str:
    """The address of the mapping page."""
    file = SimpleUploadedFile(name, content)
    answer = client.post(f"/alpha/datasets/upload{query}", {"file": file})
    assert answer.status_code == 302, answer.content.decode()
    url: str = answer["Location"]
    return url


@pytest.mark.parametrize("name", FILES)
def test_all_formats_give_the_same_version(alice_client, name):
    url = upload(alice_client, FILES[name], name)

    answer = alice_client.post(url, MAPPING)

    version = DatasetVersion.objects.get()
    assert answer["Location"] == f"/alpha/datasets/{version.dataset_id}/"
    assert version.mapping == {
        "prompt": "question",
        "answer": "solution",
        "columns": ["level"],
    }
    assert version.source["filename"] == name
    rows = version.rows.order_by("position").values_list("prompt", "answer", "columns")
    assert list(rows) == [("2+2?", "4", {"level": 1}), ("3+3?", "6", {"level": 2})]


def test_the_columns_are_guessed_by_name(alice_client):
    page = alice_client.get(upload(alice_client))

    form = page.context["form"]
    assert form["prompt"].value() == "question"
    assert form["answer"].value() == "solution"
    assert form["columns"].value() == ["level"]
    assert form["name"].value() == "sums"


def test_the_preview_follows_what_is_chosen(alice_client):
    url = upload(alice_client)
    chosen = {"prompt": "solution", "answer": "", "columns": ["question"]}

    page = alice_client.get(url, chosen, headers={"hx-request": "true"})

    content = page.content.decode()
    assert "<html" not in content
    assert "no answer" in content
    first = page.context["mapped"][0][1]
    assert (first.prompt, first.answer) == ("4", None)
    assert first.columns == {"question": "2+2?"}


def test_nothing_is_imported_while_one_row_is_refused(alice_client):
    records = [*RECORDS * 200, {"question": "", "solution": "1"}, *RECORDS]
    url = upload(alice_client, jsonl(records))

    answer = alice_client.post(url, MAPPING)

    assert answer.status_code == 422
    page = answer.content.decode()
    assert "1 row with errors" in page
    assert "Line 401" in page
    assert Dataset.objects.count() == 0
    assert DatasetRow.objects.count() == 0
    assert alice_client.get(url).status_code == 200, "the file waits for another try"


def test_the_same_error_in_many_rows_is_one_line(alice_client):
    records = [*RECORDS, *[{"question": "a", "solution": None}] * 934]
    url = upload(alice_client, jsonl(records))

    answer = alice_client.post(url, MAPPING)

    assert "934 rows with errors" in answer.text
    (group,) = answer.context["refusals"].groups
    assert (group.count, group.num_more, group.column) == (934, 931, "solution")
    assert [refusal.line for refusal in group.first] == [3, 4, 5]
    assert "931 more" in answer.text


def test_a_hundred_different_errors_are_kept_and_all_are_counted():
    refusals = Refusals()
    for count in range(130):
        problem = f"The text has {count} characters too many."
        refusals.add(Refusal(line=count, problem=problem, remedy="Shorten it."))

    assert len(refusals.groups) == 100
    assert (refusals.count, refusals.num_shown) == (130, 100)
    assert Refusals.from_json(refusals.as_json()).as_json() == refusals.as_json()


def test_other_columns_can_fix_the_errors(alice_client):
    records = [{"question": "a", "solution": None}, *RECORDS]
    url = upload(alice_client, jsonl(records))
    assert alice_client.post(url, MAPPING).status_code == 422

    answer = alice_client.post(url, {**MAPPING, "answer": ""})

    assert answer.status_code == 302
    assert list(DatasetRow.objects.values_list("answer", flat=True)) == [None] * 3


def test_an_invalid_choice_is_an_error_of_its_field(alice_client):
    url = upload(alice_client)
    for change, field in (
        ({"name": ""}, "name"),
        ({"name": "x" * 81}, "name"),
        ({"prompt": "nothing"}, "prompt"),
        ({"answer": "question"}, "answer"),
        ({"columns": ["nothing"]}, "columns"),
        ({"prompt": "", "template": ""}, "template"),
        ({"prompt": "", "template": "{{ question"}, "template"),
        ({"prompt": "", "template": "{{ nothing }}"}, "template"),
        ({"prompt": "", "template": "x" * 5_000}, "template"),
        ({"last_reply": "nothing"}, "last_reply"),
    ):
        answer = alice_client.post(url, {**MAPPING, **change})

        assert answer.status_code == 422
        assert set(answer.context["form"].errors) == {field}
    assert Dataset.objects.count() == 0


def test_a_taken_name_is_an_error_of_its_field(alice_client):
    alice_client.post(upload(alice_client), MAPPING)

    answer = alice_client.post(upload(alice_client), MAPPING)

    assert answer.status_code == 422
    assert set(answer.context["form"].errors) == {"name"}


def test_a_new_version_of_a_dataset(alice_client):
    alice_client.post(upload(alice_client), MAPPING)
    dataset = Dataset.objects.get()
    more = jsonl([*RECORDS, {"question": "1+1?", "solution": "2", "level": 0}])

    url = upload(alice_client, more, query=f"?dataset={dataset.pk}")
    answer = alice_client.post(url, MAPPING, follow=True)

    assert "as version 2" in answer.content.decode()
    assert dataset.versions.count() == 2


def test_a_new_version_starts_with_the_columns_of_the_version_before(alice_client):
    rows = jsonl([{"answer": "4", "note": "2+2?", "key": "four"}])
    chosen = {**MAPPING, "prompt": "note", "answer": "key", "columns": []}
    alice_client.post(upload(alice_client, rows), chosen)
    dataset = Dataset.objects.get()

    url = upload(alice_client, rows, query=f"?dataset={dataset.pk}")
    form = alice_client.get(url).context["form"]

    assert (form["prompt"].value(), form["answer"].value()) == ("note", "key")


def test_the_same_file_again_makes_no_version(alice_client):
    alice_client.post(upload(alice_client), MAPPING)
    dataset = Dataset.objects.get()

    url = upload(alice_client, query=f"?dataset={dataset.pk}")
    answer = alice_client.post(url, MAPPING, follow=True)

    assert "as version 2" not in answer.text
    assert dataset.versions.count() == 1


def test_chat_messages_are_prompts(alice_client):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
    ]
    url = upload(alice_client, jsonl([{"messages": messages, "answer": 4}]))

    alice_client.post(url, {"name": "Chat", "prompt": "messages", "answer": "answer"})

    row = DatasetRow.objects.get()
    assert row.prompt_value == messages
    assert row.answer == "4"
    page = alice_client.get(f"/alpha/datasets/{row.version.dataset_id}/")
    assert "Be brief." in page.content.decode()


def test_csv_cells_of_extra_columns_are_parsed_without_loss(alice_client):
    read = {"[3, 5]": [3, 5], "24": 24, "-1.5": -1.5}
    left = {text: text for text in ("007", "1e5", "[oops", "", "true", "[NaN]")}
    cells = read | left
    lines = "".join(f'a,"{cell}"\n' for cell in cells)
    url = upload(alice_client, f"prompt,x\n{lines}".encode(), "rows.csv")

    alice_client.post(url, {"name": "x", "prompt": "prompt", "columns": ["x"]})

    rows = DatasetRow.objects.order_by("position")
    assert [row.columns["x"] for row in rows] == list(cells.values())


def test_the_uploaded_file_is_deleted_after_the_import(alice_client):
    url = upload(alice_client)
    path = Upload.objects.get().path
    assert path.exists()

    alice_client.post(url, MAPPING)

    assert not path.exists()
    assert Upload.objects.count() == 0
    assert alice_client.get(url).status_code == 404


def test_a_file_can_be_discarded(alice_client):
    url = upload(alice_client)

    alice_client.post(url, {"discard": "1"})

    assert Upload.objects.count() == 0
    assert Dataset.objects.count() == 0


def test_a_missing_file_redirects_to_the_upload_page(alice_client):
    url = upload(alice_client)
    Upload.objects.get().path.unlink()

    answer = alice_client.get(url)

    assert answer["Location"] == "/alpha/datasets/upload"
    assert Upload.objects.count() == 0


def test_uploads_are_purged_after_a_week(alice_client):
    upload(alice_client)
    old = Upload.objects.get()
    Upload.objects.update(created_at=timezone.now() - timedelta(days=8))

    upload(alice_client)

    assert not old.path.exists()
    assert not Upload.objects.filter(pk=old.pk).exists()


def test_a_file_over_the_limit_is_refused(alice_client, monkeypatch):
    monkeypatch.setattr("dashboard.datasets.uploads.MAX_UPLOAD_BYTES", 10)
    file = SimpleUploadedFile("rows.jsonl", b"x" * 11)

    answer = alice_client.post("/alpha/datasets/upload", {"file": file})

    assert answer.status_code == 422
    assert answer.context["form"].has_error("file", "datasets.file_too_large")


def test_a_missing_file_is_an_error(alice_client):
    answer = alice_client.post("/alpha/datasets/upload")

    assert answer.status_code == 422
    assert Upload.objects.count() == 0


def test_a_hostile_file_name_is_escaped(alice_client, team):
    file = SimpleUploadedFile("x.jsonl", FILES["sums.jsonl"])
    file._name = '<img src=x onerror="1">\x00/../../x.jsonl'

    answer = alice_client.post("/alpha/datasets/upload", {"file": file}, follow=True)

    assert answer.status_code == 200
    assert "<img src=x" not in answer.content.decode()
    stored = Upload.objects.get()
    assert stored.path.parent.name == "uploads"
    assert "/" not in stored.stored_name


@pytest.mark.django_db(transaction=True)
def test_two_clicks_at_once_make_one_import(alice, alice_client):
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
    run_threads(clicks)

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
def test_a_second_click_during_the_import_redirects_to_it(
    alice_client, monkeypatch, is_read
):
    url = upload(alice_client)
    peek, others = dataset_mapping.try_peek, ["the first click"]

    def peek_late(*args: Any) -> Any:
        """The first click's import is whole before, or just after, the file is read."""
        seen = peek(*args) if is_read or not others else None
        if others:
            others.pop()
            assert alice_client.post(url, MAPPING).status_code == 302
        return seen or peek(*args)

    monkeypatch.setattr(dataset_mapping, "try_peek", peek_late)

    answer = alice_client.post(url, MAPPING)

    assert answer.status_code == 302
    version = DatasetVersion.objects.get()
    assert ImportJob.objects.get().version == version
    page = alice_client.get(answer.url).content.decode()
    assert "Imported 2 rows" in page
    assert "is missing" not in page


@pytest.mark.parametrize(
    ("name", "content"),
    [
        # Many short rows; blank lines; one long text.
        ("rows.jsonl.gz", gzip.compress(b'{"question":"1","solution":"2"}\n' * 6_000)),
        ("rows.csv.gz", gzip.compress(b"question,solution\n" + b"1,2\n" * 6_000)),
        ("rows.csv", b"question,solution\n" + b"1,2\n" * 6_000),
        (
            "rows.jsonl.gz",
            gzip.compress(FILES["sums.jsonl"] + (b" " * 99 + b"\n") * 12_000),
        ),
        (
            "rows.jsonl.gz",
            gzip.compress(jsonl([{"question": "1" * 1_200_000, "solution": "2"}])),
        ),
    ],
    ids=["packed rows", "packed cells", "cells", "blank lines", "long text"],
)
def test_a_file_that_decompresses_to_much_is_left_to_a_worker(
    alice_client, name, content
):
    assert len(content) < AT_ONCE_BYTES
    url = upload(alice_client, content, name)
    answer = alice_client.post(url, {**MAPPING, "columns": []})

    job = ImportJob.objects.get()
    assert answer["Location"] == f"/alpha/datasets/imports/{job.pk}"
    assert (job.state, DatasetVersion.objects.count()) == ("queued", 0)
