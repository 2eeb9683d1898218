"""Compressed files are read as a stream, within limits, with errors by line."""

import gzip
import json
import random
from pathlib import Path

import pytest

from dashboard.datasets.parsing.detection import read_records
from dashboard.datasets.parsing.records import Record, Refusal
from dashboard.datasets.parsing.streams import Source
from tests.dashboard.datasets.parsing.bad_files import parquet, zstd

pytestmark = pytest.mark.usefixtures("parquet_in_process")

PACK = {"gzip": lambda content: gzip.compress(content, mtime=0), "zstd": zstd}


def noise(num_rows: int) -> bytes:
    chance = random.Random(0)
    rows = ({"prompt": chance.randbytes(300).hex()} for _ in range(num_rows))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def source(folder: Path, content: bytes, packing: str, name: str = "jsonl") -> Source:
    path = folder / "upload"
    path.write_bytes(content)
    return Source(path, name, packing)


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("parts", [1, 3])
def test_every_part_of_a_packed_file_is_read(tmp_path, packing, parts):
    """Compressed parts may be concatenated, as with `cat a.gz b.gz`."""
    content = PACK[packing](noise(2_000)) * parts

    found = list(read_records(source(tmp_path, content, packing)))

    assert (
        sum(isinstance(item, Record) for item in found) == len(found) == 2_000 * parts
    )


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("damage", ["cut short", "changed"])
def test_rows_before_the_damage_are_read_and_the_line_is_named(
    tmp_path, packing, damage
):
    content = PACK[packing](noise(5_000))
    place = len(content) * 3 // 4
    broken = content[:place]
    if damage == "changed":
        broken += bytes(200) + content[place + 200 :]

    *rows, last = read_records(source(tmp_path, broken, packing))

    assert isinstance(last, Refusal)
    assert packing in last.problem
    assert last.ends_file
    assert last.line == len(rows) + 1 > 1_000


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize(
    "name",
    [
        *("jsonl", "parquet"),
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("json", "csv", "tsv")
        ),
    ],
)
def test_a_decompression_bomb_is_refused(tmp_path, packing, name):
    content = PACK[packing](bytes(80 * 2**20))

    found = list(read_records(source(tmp_path, content, packing, name)))

    assert len(found) <= 20
    assert found[-1].ends_file


@pytest.mark.parametrize("packing", PACK)
def test_a_file_decompresses_to_at_most_a_hundred_times_its_size(
    tmp_path, packing, monkeypatch
):
    monkeypatch.setattr(
        "dashboard.datasets.parsing.streams.UNPACKED_FLOOR_BYTES", 2**20
    )
    line = json.dumps({"prompt": "a" * 2**10}).encode() + b"\n"

    *rows, last = read_records(source(tmp_path, PACK[packing](line * 9_000), packing))

    assert isinstance(last, Refusal)
    assert "100 times" in last.problem
    assert last.line == len(rows) + 1
    assert all(isinstance(row, Record) for row in rows)


def test_a_zstd_frame_with_a_huge_window_is_refused(tmp_path):
    """zstd --long=31 wants a window of 2 GiB."""
    huge_window = b"\x28\xb5\x2f\xfd" + bytes([0x00, 21 << 3]) + b"\x01\x00\x00"

    (refusal,) = read_records(source(tmp_path, huge_window, "zstd"))

    assert isinstance(refusal, Refusal)
    assert (refusal.ends_file, refusal.value) == (True, "after 0 bytes")


@pytest.mark.parametrize("packing", PACK)
def test_a_packed_parquet_file_that_is_damaged_is_refused_as_a_whole(tmp_path, packing):
    content = PACK[packing](parquet(prompt=["a"] * 9))[:-4]

    (refusal,) = read_records(source(tmp_path, content, packing, "parquet"))

    assert isinstance(refusal, Refusal)
    assert refusal.ends_file


@pytest.mark.parametrize("packing", ["", *PACK])
@pytest.mark.parametrize("name", ["jsonl", "parquet"])
def test_reading_reports_its_progress(tmp_path, packing, name):
    content = noise(3_000) if name == "jsonl" else parquet(prompt=["a"] * 500)
    packed = PACK[packing](content) if packing else content
    read = source(tmp_path, packed, packing, name)

    seen = [read.num_bytes_read for _ in read_records(read)]

    assert seen == sorted(seen)
    assert seen[-1] == len(packed)
    assert len(set(seen)) > 1 or packing
