"""A Parquet file may name a long text once and repeat it a million times."""

import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dashboard.datasets.parsing import parquet
from dashboard.datasets.parsing.detection import read_records
from dashboard.datasets.parsing.records import Parsed, Record, Refusal
from dashboard.datasets.parsing.streams import Source
from tests.environment import run_here

pytestmark = pytest.mark.usefixtures("parquet_in_process")
MIB = 2**20
READ = """
import sys
from pathlib import Path
from dashboard.datasets.parsing.parquet import read_batches
from dashboard.datasets.parsing.streams import Source
for items in read_batches(Source(Path(sys.argv[1]), "parquet")):
    pass
# Unlike ru_maxrss, it does not count the process that started this one.
status = Path("/proc/self/status").read_text()
print(status.partition("VmHWM:")[2].split()[0], items[-1])
"""


def repeated(num_chars: int, num_rows: int) -> pa.DictionaryArray:
    indices = pa.array([0] * num_rows, pa.int32())
    return pa.DictionaryArray.from_arrays(indices, pa.array(["a" * num_chars]))


def in_a_list(num_chars: int, num_values: int) -> pa.ListArray:
    """One row."""
    texts = repeated(num_chars, num_values)
    return pa.ListArray.from_arrays(pa.array([0, num_values], pa.int32()), texts)


def write(folder: Path, column: pa.Array, **options: Any) -> Path:
    path = folder / "rows.parquet"
    table = pa.table({"prompt": column})
    pq.write_table(table, path, compression="zstd", **options)
    assert path.stat().st_size < 20_000
    return path


def read(path: Path) -> tuple[int, Refusal | None]:
    """Rows that are kept, and the last refusal."""
    num_rows, refusal = 0, None
    for item in read_records(Source(path, "parquet")):
        num_rows += isinstance(item, Record)
        refusal = item if isinstance(item, Refusal) else refusal
    return num_rows, refusal


def read_here(path: Path) -> list[Parsed]:
    """Not in a process of its own, so that limits can be other ones."""
    return list(chain.from_iterable(parquet.read_batches(Source(path, "parquet"))))


@pytest.mark.parametrize("store_schema", [True, False])  # else it is read as a text
def test_repeated_values_count_each_time(tmp_path, store_schema):
    path = write(tmp_path, repeated(2 * MIB, 1_000), store_schema=store_schema)

    num_rows, refusal = read(path)

    assert num_rows <= 32  # 64 MiB, which any file may unpack to
    assert refusal
    assert "100 times" in refusal.problem
    assert refusal.ends_file


def test_nested_repeated_values_count_each_time(tmp_path):
    inner = pa.StructArray.from_arrays([repeated(2 * MIB, 1_000)], ["text"])

    num_rows, refusal = read(write(tmp_path, inner))

    assert num_rows <= 32
    assert refusal
    assert refusal.ends_file


def test_a_value_that_is_repeated_is_kept_as_it_is(tmp_path):
    path = write(tmp_path, repeated(3, 40))

    items = list(read_records(Source(path, "parquet")))

    assert items == [Record(line, {"prompt": "aaa"}) for line in range(1, 41)]


def test_lists_of_repeated_values_are_kept_as_they_are(tmp_path):
    path = write(tmp_path, in_a_list(3, 2))

    assert list(read_records(Source(path, "parquet"))) == [
        Record(1, {"prompt": ["aaa", "aaa"]})
    ]


def test_only_the_row_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "MAX_ROW_BYTES", MIB)

    path = write(tmp_path, pa.array(["a", "b" * 2 * MIB, "c"]))
    items = read_here(path)

    assert [item.line for item in items] == [1, 2, 3]
    assert isinstance(items[1], Refusal)
    assert items[1].column == "prompt"
    assert "1,048,576 bytes" in items[1].problem


def test_large_dictionaries_are_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "BATCH_BYTES", MIB)

    [refusal] = read_here(write(tmp_path, repeated(2 * MIB, 2)))

    assert isinstance(refusal, Refusal)
    assert refusal.line is None
    assert "use_dictionary=False" in refusal.remedy


@pytest.mark.parametrize(
    "column",
    [repeated(20 * MIB, 1_000), in_a_list(4 * MIB, 5_000)],
    ids=["rows", "list"],
)
def test_reading_takes_little_memory(tmp_path, column):
    path = write(tmp_path, column, store_schema=False)

    done = run_here(sys.executable, "-c", READ, str(path))

    assert "100 times" in done.stdout, done.stderr
    assert int(done.stdout.split()[0]) < 1.2 * 2**20  # KiB
