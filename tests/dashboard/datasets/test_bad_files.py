"""Every bad file is answered with its line, the value and the remedy."""

from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.datasets.mapping import Mapping, map_record
from dashboard.datasets.models import Dataset, Upload
from dashboard.datasets.parsing.formats import detect_format, read_records
from dashboard.datasets.refusals import Refusal
from tests.dashboard.datasets.bad_files import BAD_FILES, BadFile


def refusals_of(bad: BadFile, folder: Path) -> list[Refusal]:
    path = folder / "upload"
    path.write_bytes(bad.content)
    file_format = detect_format(bad.filename, bad.content[:8])
    columns = ("level",) if b"level" in bad.content else ()
    answer = "answer" if b"answer" in bad.content else None
    mapping = Mapping(prompt="prompt", answer=answer, columns=columns)
    rows = (
        item
        if isinstance(item, Refusal)
        else map_record(item, mapping, is_text=file_format == "csv")
        for item in read_records(file_format, path)
    )
    return [row for row in rows if isinstance(row, Refusal)]


@pytest.mark.parametrize("bad", BAD_FILES, ids=lambda bad: f"{bad.filename} {bad.name}")
def test_it_names_line_value_and_remedy(bad: BadFile, tmp_path: Path):
    refusals = refusals_of(bad, tmp_path)

    assert refusals, "nothing was refused"
    first = refusals[0]
    assert (first.line or 0) == (bad.line or 0)
    assert bad.value in first.value
    assert len(first.value) <= 110
    assert first.problem.endswith(".")
    assert bad.remedy in first.remedy
    str(first).encode()


@pytest.mark.parametrize("bad", BAD_FILES, ids=lambda bad: f"{bad.filename} {bad.name}")
def test_the_pages_refuse_it_and_import_nothing(
    bad: BadFile, alice_client: Client, team: Team
):
    file = SimpleUploadedFile(bad.filename, bad.content)

    answer = alice_client.post("/alpha/datasets/upload", {"file": file})
    if answer.status_code == 302:
        answer = _import(alice_client, answer["Location"], bad)

    assert answer.status_code == 422
    assert "refused row" in answer.content.decode()
    assert Dataset.objects.count() == 0


def _import(client: Client, url: str, bad: BadFile):
    page = client.get(url)
    assert page.status_code == 200
    names = [name for name, _ in page.context["form"].fields["prompt"].choices]
    mapping = {"name": "Bad", "prompt": "prompt" if "prompt" in names else names[0]}
    mapping["answer"] = "answer" if "answer" in names else ""
    mapping["columns"] = [name for name in names if name == "level"]
    return client.post(url, mapping)


@pytest.mark.parametrize(
    ("filename", "content", "said"),
    [
        ("rows.jsonl", b"", "empty"),
        ("rows.xlsx", b"PK\x03\x04", "spreadsheet"),
        ("rows.jsonl.gz", b"\x1f\x8b\x08", "gzip"),
        ("rows.jsonl.bz2", b"BZh9", "bzip2"),
        ("rows.jsonl.xz", b"\xfd7zXZ\x00", "xz"),
        ("rows.jsonl.zst", b"\x28\xb5\x2f\xfd", "zstd"),
        ("rows.pkl", b"\x80\x04\x95abc", "pickle"),
        ("rows.txt", b"hello", ".txt"),
        ("rows", b"hello", ".jsonl, .csv or .parquet"),
        ("../../etc/passwd", b"root", ".jsonl, .csv or .parquet"),
    ],
)
def test_a_file_of_another_kind_is_refused_at_once(
    alice_client: Client, filename: str, content: bytes, said: str
):
    file = SimpleUploadedFile("x", content)
    file._name = filename

    answer = alice_client.post("/alpha/datasets/upload", {"file": file})

    assert answer.status_code == 422
    assert said in answer.content.decode()
    assert Upload.objects.count() == 0
