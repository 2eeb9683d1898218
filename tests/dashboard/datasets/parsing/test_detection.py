"""The format comes from the content; a wrong extension gives a remark."""

import gzip
import json
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from dashboard.datasets.models import DatasetRow, DatasetVersion, Upload
from dashboard.datasets.parsing.detection import Detected, detect
from dashboard.project.errors import UserError
from tests.dashboard.datasets.parsing.bad_files import parquet, zstd

LINES = b'{"prompt": "a"}\n{"prompt": "b"}\n'
LIST = b'[{"prompt": "a"}, {"prompt": "b"}]'
WRAPPED = b'{"data": [{"prompt": "a"}, {"prompt": "b"}]}'
COMMAS = b"prompt,answer\na,1\nb,2\n"
TABS = b"prompt\tanswer\na\t1\nb\t2\n"
COLUMNS = parquet(prompt=["a", "b"])


def detected(folder: Path, filename: str, content: bytes) -> Detected:
    path = folder / "upload"
    path.write_bytes(content)
    return detect(filename, path)


def test_a_matching_extension_gives_no_remark(tmp_path):
    for filename, content, file_format in (
        ("rows.jsonl", LINES, "jsonl"),
        ("ROWS.NDJSON", LINES, "jsonl"),
        ("rows.jsonl", WRAPPED, "jsonl"),
        ("rows.json", LIST, "json"),
        ("rows.json", WRAPPED, "json"),
        ("rows.json", b" \n" + json.dumps([{"a": 1}], indent=2).encode(), "json"),
        ("rows.json", json.dumps({"a": [{"a": 1}]}, indent=2).encode(), "json"),
        ("rows.json", "[\n{}]".encode("utf-16"), "json"),
        ("rows.csv", COMMAS, "csv"),
        ("rows.csv", TABS, "csv"),
        ("rows.tsv", TABS, "tsv"),
        ("rows.pq", COLUMNS, "parquet"),
        ("rows", LIST, "json"),
        ("rows.txt", LINES, "jsonl"),
        ("rows.bin", COLUMNS, "parquet"),
        ("rows.csv", b"[x],y\n1,2\n", "csv"),
        ("rows.jsonl", b"hello, world\n", "jsonl"),
        ("rows.jsonl", b'"prompt": "a", "b": "c"}\n', "jsonl"),
    ):
        found = detected(tmp_path, filename, content)

        assert found == Detected(format=file_format), (filename, content)


def test_a_wrong_extension_gives_a_remark(tmp_path):
    for filename, content, file_format, fragment in (
        ("rows.json", LINES, "jsonl", "JSON Lines"),
        ("rows.jsonl", LIST, "json", "a JSON document"),
        ("rows.jsonl", json.dumps({"a": [{}]}, indent=1).encode(), "json", "document"),
        ("rows.csv", LINES, "jsonl", "is JSON Lines"),
        ("rows.csv", LIST, "json", "a JSON document"),
        ("rows.jsonl", COMMAS, "csv", "is CSV"),
        ("rows.json", TABS, "tsv", "is TSV"),
        ("rows.tsv", COMMAS, "csv", "is CSV"),
        ("rows.csv", COLUMNS, "parquet", "is Parquet"),
        ("rows.parquet", LINES, "jsonl", "is JSON Lines"),
        ("rows.jsonl.gz", LINES, "jsonl", "not compressed"),
    ):
        found = detected(tmp_path, filename, content)

        assert (found.format, fragment in found.remark) == (file_format, True), filename


CONTENTS = {
    "jsonl": LINES,
    "json": WRAPPED,
    "csv": COMMAS,
    "tsv": TABS,
    "parquet": COLUMNS,
}
PACKERS = {"gzip": lambda content: gzip.compress(content, mtime=0), "zstd": zstd}


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf\n<!DOCTYPE html><html><body>a,b\n1,2\n",
        b"<html>\na,b\n1,2\n",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n",
    ],
    ids=["page with a mark", "page", "pointer"],
)
@pytest.mark.parametrize("filename", ["a.csv", "a.jsonl", "a.parquet"])
def test_content_of_another_format_is_refused(filename, content, tmp_path):
    with pytest.raises(UserError) as refused:
        detected(tmp_path, filename, content)

    assert refused.value.code == "datasets.unsupported_format"


def test_a_compressed_file_has_the_format_of_its_content(tmp_path):
    for packing, pack in PACKERS.items():
        for suffix, content in CONTENTS.items():
            for packed_suffix in (".gz", ".zst", ""):
                name = f"rows.{suffix}{packed_suffix}"

                found = detected(tmp_path, name, pack(content))

                assert (found.format, found.packing) == (suffix, packing), name


@pytest.mark.parametrize(("packing", "suffix"), [("gzip", "jsonl"), ("zstd", "csv")])
def test_a_compressed_file_is_imported_like_the_plain_one(
    alice_client, team, packing, suffix
):
    file = SimpleUploadedFile(f"rows.{suffix}.gz", PACKERS[packing](CONTENTS[suffix]))

    answer = alice_client.post("/alpha/datasets/upload", {"file": file})
    page = alice_client.get(answer["Location"])
    alice_client.post(answer["Location"], {"name": "Rows", "prompt": "prompt"})

    assert f", {packing}-compressed" in page.text
    rows = DatasetRow.objects.order_by("position")
    assert list(rows.values_list("prompt", flat=True)) == ["a", "b"]
    version = DatasetVersion.objects.get()
    assert version.source["format"] == suffix


def test_the_page_shows_the_format_remark(alice_client, team):
    file = SimpleUploadedFile("rows.csv", LINES)

    page = alice_client.post("/alpha/datasets/upload", {"file": file}, follow=True)

    upload = Upload.objects.get()
    assert upload.format == "jsonl"
    assert upload.remark in page.text
