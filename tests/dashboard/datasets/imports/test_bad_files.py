"""Every bad file is answered with its line, the value and the remedy."""

import gzip
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.datasets.imports.mapping import Mapping
from dashboard.datasets.imports.uploads import import_upload, peek, store_upload
from dashboard.datasets.models import Dataset, Upload
from dashboard.datasets.parsing.refusals import ImportRefused, Refusals
from tests.dashboard.datasets.parsing.bad_files import BAD_FILES, BadFile, zstd

SOME = 9  # so many files are read for one that is sent through the pages


@pytest.fixture(autouse=True)
def answered_at_once(monkeypatch: pytest.MonkeyPatch):
    """Whatever its size, a file is imported before its form is answered."""
    monkeypatch.setattr("dashboard.datasets.views.mapping.AT_ONCE_BYTES", 2**30)


def test_there_are_three_hundred_of_them():
    assert len({(bad.filename, bad.name) for bad in BAD_FILES}) == len(BAD_FILES)
    assert len(BAD_FILES) >= 300


def name_of(bad: BadFile) -> str:
    return f"{bad.filename} {bad.name}"


@pytest.mark.parametrize("bad", BAD_FILES, ids=name_of)
def test_line_value_and_remedy_are_named_and_nothing_is_imported(
    bad: BadFile, team: Team
):
    file = SimpleUploadedFile(bad.filename, bad.content)

    upload = store_upload(team=team, user=None, file=file, dataset=None)
    seen = peek(upload)
    refusals = seen.refusals
    if seen.records:
        with pytest.raises(ImportRefused) as refused:
            import_upload(
                upload=upload, mapping=_mapping(seen.names), name="Bad", user=None
            )
        refusals = refused.value.refusals

    assert Dataset.objects.count() == 0
    assert_named(bad, refusals)


def _mapping(names: list[str]) -> Mapping:
    return Mapping(
        prompt="prompt" if "prompt" in names else names[0],
        answer="answer" if "answer" in names else None,
        columns=("level",) if "level" in names else (),
    )


def assert_named(bad: BadFile, refusals: Refusals) -> None:
    first = refusals.shown[0]
    assert (first.line or 0) == (bad.line or 0), first
    assert first.row == bad.row
    assert bad.value in first.value
    assert len(first.value) <= 110
    assert first.problem.endswith(".")
    assert bad.remedy in first.remedy
    str(first).encode()


@pytest.mark.parametrize("bad", BAD_FILES[::SOME], ids=name_of)
def test_the_pages_say_what_was_refused(bad: BadFile, alice_client: Client, team: Team):
    file = SimpleUploadedFile(bad.filename, bad.content)

    answer = alice_client.post("/alpha/datasets/upload", {"file": file})
    if answer.status_code == 302:
        answer = _import(alice_client, answer["Location"], bad)

    assert answer.status_code == 422
    assert "refused row" in answer.content.decode()
    assert Dataset.objects.count() == 0
    assert_named(bad, answer.context["refusals"])


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
        ("rows.xls", b"\xd0\xcf\x11\xe0\xa1", "spreadsheet"),
        ("rows.jsonl.gz", b"\x1f\x8b\x08", "damaged"),
        ("rows.jsonl.gz", gzip.compress(b""), "empty"),
        ("rows.jsonl.gz", gzip.compress(gzip.compress(b"a")), "packed twice"),
        ("rows.jsonl.gz", zstd(gzip.compress(b"a")), "packed twice"),
        ("rows.tar.gz", gzip.compress(b"a" * 257 + b"ustar"), "tar archive"),
        ("rows.csv.gz", gzip.compress(b"a,b\n" * 99)[:-9], "cut short"),
        ("rows.jsonl.bz2", b"BZh9", "bzip2"),
        ("rows.jsonl.xz", b"\xfd7zXZ\x00", "xz"),
        ("rows.jsonl.lz4", b"\x04\x22\x4d\x18", "lz4"),
        ("rows.jsonl.7z", b"7z\xbc\xaf\x27\x1c", "7-Zip"),
        ("rows.rar", b"Rar!\x1a\x07", "RAR"),
        ("rows.jsonl.zst", b"\x28\xb5\x2f\xfd", "damaged"),
        ("rows.jsonl.zst", zstd(b"a" * 99)[:-3], "cut short"),
        ("rows.arrow", b"ARROW1\x00\x00", "Arrow"),
        ("rows.avro", b"Obj\x01", "Avro"),
        ("rows.h5", b"\x89HDF\r\n", "HDF5"),
        ("rows.db", b"SQLite format 3\x00", "SQLite"),
        ("rows.npy", b"\x93NUMPY", "NumPy"),
        ("rows.pdf", b"%PDF-1.7", "PDF"),
        ("rows.pkl", b"\x80\x04\x95abc", "pickle"),
        ("rows.jsonl", b"\x80\x05\x95abc", "pickle"),
        ("rows.parquet", b"prompt\na\n", "does not begin as a Parquet file"),
        ("rows.txt", b"hello", ".txt"),
        ("rows", b"hello", "JSONL, JSON, CSV, TSV or Parquet"),
        ("../../etc/passwd", b"root", "JSONL, JSON, CSV, TSV or Parquet"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_of_another_kind_is_refused_at_once(
    alice_client: Client, filename: str, content: bytes, said: str
):
    file = SimpleUploadedFile("x", content)
    file._name = filename
    before = _stored_files()

    answer = alice_client.post("/alpha/datasets/upload", {"file": file})

    assert answer.status_code == 422
    assert said in answer.content.decode()
    assert Upload.objects.count() == 0
    assert _stored_files() == before


def _stored_files() -> set[Path]:
    return set(Upload(stored_name="x").path.parent.glob("*"))
