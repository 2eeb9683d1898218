"""Datasets by the API: read, sent in parts, made of others, looked through."""

import gzip
import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from dashboard.accounts.models import AuditEntry
from dashboard.datasets.models import Dataset, Upload
from dashboard.jobs.models import JobState
from tests.dashboard.api.asking import BASE, Program
from tests.dashboard.jobs.working import take

ROWS = [
    {"question": f"{n} + {n} =", "answer": str(2 * n), "level": n % 3} for n in range(9)
]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


@pytest.fixture
def version(program) -> dict[str, Any]:
    return upload(program)


def upload(program: Program, data: bytes = LINES, **fields: Any) -> dict[str, Any]:
    file = SimpleUploadedFile("sums.jsonl", data)
    made = program.client.post(
        f"{BASE}/imports",
        {"file": file, "columns": ["level"], **fields},
        headers=program.headers,
    )
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()["version"]
    return found


def rows_of(program: Program, version: dict[str, Any], query: str = "") -> Any:
    return program.get(f"/dataset-versions/{version['id']}/rows{query}").json()


def test_rows_are_searched_sorted_and_paged(program, version):
    searched = rows_of(program, version, "?column=level&value=1&sort=-position")
    seen, cursor = [], ""
    while True:
        page = rows_of(program, version, f"?sort=-answer&limit=4&cursor={cursor}")
        seen += [row["answer"] for row in page["items"]]
        if not (cursor := page["next_cursor"]):
            break

    assert [row["position"] for row in searched["items"]] == [7, 4, 1]
    assert (searched["num_matching"], searched["is_counted"]) == (3, True)
    assert (searched["total"], searched["next_cursor"]) == (9, None)
    assert seen == sorted((row["answer"] for row in ROWS), reverse=True)


def test_a_column_may_be_a_path_into_one(program):
    rows = ({"question": f"{n}?", "level": {"of": [n % 3]}} for n in range(9))
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    version = upload(program, lines, answer="")

    found = rows_of(program, version, "?column=level.of.0&value=1")
    ordered = rows_of(program, version, "?sort=-column:level.of&limit=3")
    refused = rows_of(program, version, "?column=levels.of&value=1")

    assert [row["position"] for row in found["items"]] == [1, 4, 7]
    assert [row["position"] for row in ordered["items"]] == [8, 5, 2]
    assert refused["errors"][0]["field"] == "query.column"


def test_an_invalid_filter_is_an_error_of_its_field(program, version):
    for query, field in [
        ("?sort=loudness", "query.sort"),
        ("?column=nothing", "query.column"),
        ("?min_chars=9&max_chars=2", "query.max_chars"),
    ]:
        refused = rows_of(program, version, query)

        assert refused["status"] == 422, query
        assert refused["errors"][0]["field"] == field, query


def test_a_version_is_downloaded(program, version):
    answer = program.get(f"/dataset-versions/{version['id']}/files/jsonl")

    lines = b"".join(answer.streaming_content).splitlines()
    assert [json.loads(line) for line in lines] == ROWS
    assert 'filename="sums-v1.jsonl"' in answer["Content-Disposition"]


def put(program: Program, upload_id: int, offset: int, part: bytes) -> Any:
    return program.client.generic(
        "PUT",
        f"{BASE}/dataset-uploads/{upload_id}/parts?offset={offset}",
        part,
        content_type="application/octet-stream",
        headers=program.headers,
    )


def test_an_upload_in_parts_is_resumed(program):
    packed = gzip.compress(LINES)
    begin = {
        "filename": "sums.jsonl.gz",
        "num_bytes": len(packed),
        "fingerprint": "a1",
    }
    first = program.post("/dataset-uploads", begin).json()
    put(program, first["id"], 0, packed[:20])
    columns = {"name": "sums", "columns": ["level"]}
    early = program.post(f"/dataset-uploads/{first['id']}/import", columns)
    again = program.post("/dataset-uploads", begin).json()
    out_of_step = put(program, first["id"], 0, packed[:20])
    put(program, again["id"], again["num_received"], packed[20:])
    made = program.post(f"/dataset-uploads/{first['id']}/import", columns)

    assert (early.status_code, out_of_step.status_code) == (409, 409)
    assert "byte 20" in out_of_step.json()["detail"]
    assert (again["id"], again["num_received"]) == (first["id"], 20)
    assert made.status_code == 201, made.text
    assert made.json()["version"]["num_rows"] == 9
    assert not Upload.objects.exists()


def test_an_unfinished_upload_is_discarded(program):
    begin = {"filename": "x.jsonl", "num_bytes": 9, "fingerprint": "a"}
    waiting = program.post("/dataset-uploads", begin).json()

    body = program.delete(f"/dataset-uploads/{waiting['id']}").json()

    assert body["done"] is True
    assert program.get(f"/dataset-uploads/{waiting['id']}").status_code == 404


def test_a_link_is_left_to_a_worker(program):
    fetch = {"link": "openai/gsm8k", "part": "main/train"}
    begun = program.post("/dataset-fetches", fetch)
    wrong = program.post("/dataset-fetches", {"link": "ftp://example.org/x"})

    assert begun.status_code == 202, begun.text
    assert (begun.json()["kind"], begun.json()["state"]) == ("fetch", "queued")
    assert wrong.status_code == 422
    assert wrong.json()["errors"][0]["field"] == "body.link"


def test_the_splits_of_a_hub_dataset_are_listed(program):
    job = program.post("/dataset-fetches", {"link": "openai/gsm8k"}).json()
    file = {"path": "train.jsonl", "num_bytes": 9, "blob": "a", "sha256": ""}
    choice = {
        "name": "main/train",
        "is_split": True,
        "revision": "main",
        "sha": "a" * 40,
        "files": [file],
    }
    upload_ = Upload.objects.get(pk=job["upload_id"])
    upload_.source |= {"choices": [choice]}
    upload_.save()
    take("dataset.fetch").end(JobState.DONE)
    address = f"/dataset-uploads/{upload_.pk}"

    offered = program.get(address).json()["choices"]

    assert [each["name"] for each in offered] == ["main/train"]


def test_an_import_is_stopped(program):
    job = program.post("/dataset-fetches", {"link": "openai/gsm8k"}).json()
    address = f"/imports/{job['id']}"

    stopped = [program.post(f"{address}/stop").json()["done"] for _ in range(2)]

    assert stopped == [True, False]
    assert program.get(address).json()["state"] == "cancelled"


def test_a_dataset_is_moved_to_the_trash_and_restored(program, version, team):
    address = f"/datasets/{version['dataset_id']}"
    moved = [program.patch(address, {"is_trashed": True}).json() for _ in range(2)]
    trashed = program.get("/datasets?is_trashed=true").json()
    team.datasets.create(name="sums")
    taken = program.patch(address, {"is_trashed": False})
    named = {"is_trashed": False, "name": "old sums"}
    restored = program.patch(address, named).json()

    assert all(each["trashed_at"] for each in moved)
    assert [each["id"] for each in trashed["items"]] == [version["dataset_id"]]
    assert taken.json()["errors"][0]["field"] == "body.name"
    assert (restored["name"], restored["trashed_at"]) == ("old sums", None)
    verbs = ["dataset.trashed", "dataset.restored"]
    assert (
        list(
            AuditEntry.objects.filter(verb__in=verbs)
            .order_by("pk")
            .values_list("verb", flat=True)
        )
        == verbs
    )


def test_a_dataset_is_deleted_only_from_the_trash(program, version):
    address = f"/datasets/{version['dataset_id']}"
    early = program.delete(address)
    program.patch(address, {"is_trashed": True})

    gone = program.delete(address)

    assert early.status_code == 409
    assert gone.json()["done"] is True
    assert not Dataset.objects.exists()


def test_a_program_sends_a_template_and_paths(program):
    row = {"question": "2+2?", "info": {"right": ["4", "four"]}, "level": 1}
    data = json.dumps(row).encode()

    made = upload(
        program,
        data,
        template="{{ question }} Level {{ level }}.",
        answer="info.right",
    )

    (stored,) = rows_of(program, made)["items"]
    assert stored["prompt"] == "2+2? Level 1."
    assert stored["answer"] == ["4", "four"]
    assert made["mapping"]["template"] == "{{ question }} Level {{ level }}."
    assert made["mapping"]["answer"] == "info.right"


def test_a_program_names_the_system_column(program):
    row = {"question": "2+2?", "answer": "4", "role": "Be short."}

    made = upload(program, json.dumps(row).encode(), system="role", columns=[])

    (stored,) = rows_of(program, made)["items"]
    assert [each["role"] for each in stored["prompt"]] == ["system", "user"]
    assert made["mapping"]["system"] == "role"


def test_a_programs_wrong_mapping_names_its_field(program):
    for fields, field, code in [
        ({"template": "{{ question"}, "form.template", "datasets.bad_template"),
        ({"template": "{{ nothing }}"}, "form.template", "datasets.unknown_column"),
        (
            {"template": "{{ level }}", "prompt": "question"},
            "form.template",
            "datasets.prompt_and_template",
        ),
        ({"answer": "level.right"}, "form.answer", "invalid_choice"),
        ({"last_reply": "maybe"}, "form.last_reply", ""),
    ]:
        file = SimpleUploadedFile("sums.jsonl", LINES)
        answer = program.client.post(
            f"{BASE}/imports", {"file": file, **fields}, headers=program.headers
        )

        assert answer.status_code == 422, fields
        (error,) = answer.json()["errors"]
        assert error["field"] == field
        assert not code or error["code"] == code, error


def test_equal_errors_of_rows_are_one_error(program):
    bad = "".join('{"question": "a", "answer": null, "level": 1}\n' for _ in range(40))
    file = SimpleUploadedFile("sums.jsonl", LINES + bad.encode())

    answer = program.client.post(
        f"{BASE}/imports", {"file": file}, headers=program.headers
    )

    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert "line 10" in error["message"].lower()
    assert "37 more" in error["message"]


def test_a_version_gets_an_environment(program, version):
    address = f"/dataset-versions/{version['id']}/environment"
    environment = {"kind": "guess", "max_turns": 3, "max_tokens": 64}

    made = program.post(address, {"environment": environment})
    again = program.post(address, {"environment": environment})
    refused = program.post(address, {"environment": {"kind": "guess", "max_turns": 0}})
    unlimited = program.post(address, {"environment": {"kind": "guess"}})

    assert version["environment"] is None
    assert made.status_code == again.status_code == 201
    assert made.json()["version"] == again.json()["version"]
    assert made.json()["version"]["environment"] == environment
    assert made.json()["version"]["content_sha256"] == version["content_sha256"]
    assert refused.json()["errors"][0]["field"] == "body.environment.max_turns"
    assert unlimited.json()["code"] == "datasets.invalid_environment"


def test_a_version_gets_no_environment_that_is_not_allowed(program, version, settings):
    settings.TASKSETS = frozenset({"words"})
    address = f"/dataset-versions/{version['id']}/environment"
    taskset = {"kind": "verifiers", "max_tokens": 64}

    for name in ("other", "words"):
        refused = program.post(address, {"environment": taskset | {"taskset": name}})

        assert refused.status_code == 422
        assert refused.json()["code"] == "datasets.taskset_refused"
        assert refused.json()["errors"][0]["field"] == "body.environment"
