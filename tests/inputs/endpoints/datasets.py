"""Dataset files, column mappings, and new datasets from them."""

import gzip
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from django.core.files.uploadedfile import SimpleUploadedFile

from dashboard.datasets.models import Dataset, Upload
from tests.dashboard.runs.launching import make_dataset
from tests.inputs.cases import (
    Case,
    Endpoint,
    Response,
    World,
    message_of_page,
    message_of_problem,
    shown_as_text,
)

GOOD = b'{"prompt": "1+1", "answer": "2", "level": 1}\n'


def send_file(world: World, sent: tuple[str, bytes]) -> Response:
    """Until its columns are chosen, where it comes so far."""
    name, data = sent
    file = SimpleUploadedFile(name, data)
    answer = world.client.post("/alpha/datasets/upload", {"file": file})
    if answer.status_code != 302:
        return _reported(answer)
    mapping = {"name": "Bad", "prompt": "prompt", "answer": "answer"}
    return _reported(world.client.post(answer["Location"], mapping))


def _reported(response: Any) -> Response:
    """Of the table of refusals its rows alone."""
    answer = message_of_page(response)
    return Response(answer.status, answer.message.rpartition("Fix")[2].strip())


def send_mapping(world: World, changes: dict[str, Any]) -> Response:
    file = SimpleUploadedFile("rows.jsonl", GOOD)
    answer = world.client.post("/alpha/datasets/upload", {"file": file})
    mapping = {"name": "Good", "prompt": "prompt", "answer": "answer", **changes}
    return message_of_page(world.client.post(answer["Location"], mapping))


def send_link(world: World, link: str) -> Response:
    return message_of_page(world.client.post("/alpha/datasets/upload", {"link": link}))


def begin(world: World, changes: dict[str, str]) -> Response:
    data = {"filename": "rows.jsonl", "num_bytes": "10", "fingerprint": "f", **changes}
    return shown_as_text(world.client.post("/alpha/datasets/uploads", data))


def send_part(world: World, sent: tuple[str, bytes]) -> Response:
    query, part = sent
    data = {"filename": "rows.jsonl", "num_bytes": "10", "fingerprint": "f"}
    upload = world.client.post("/alpha/datasets/uploads", data).json()
    return shown_as_text(
        world.client.post(
            f"/alpha/datasets/uploads/{upload['id']}/parts{query}",
            part,
            content_type="application/octet-stream",
        )
    )


def send_by_api(world: World, sent: tuple[str, Any]) -> Response:
    path, tree = sent
    return message_of_problem(world.program.post(path, tree))


def look(world: World, query: str) -> Response:
    version = make_dataset(world.team, "looked at")
    return message_of_page(
        world.client.get(f"/alpha/datasets/{version.dataset_id}/?{query}")
    )


def make(world: World, sent: tuple[str, dict[str, str]]) -> Response:
    page, data = sent
    version = make_dataset(world.team, "made of")
    path = page.format(dataset=version.dataset_id)
    return message_of_page(
        world.client.post(f"/alpha/datasets/{path}", data, follow=True)
    )


def jsonl(second: bytes) -> tuple[str, bytes]:
    return "rows.jsonl", GOOD + second + b"\n"


def csv(second: str) -> tuple[str, bytes]:
    return "rows.csv", b"prompt,answer\n1+1,2\n" + second.encode() + b"\n"


def parquet(**columns: Any) -> tuple[str, bytes]:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return "rows.parquet", sink.getvalue()


PARQUET = parquet(prompt=["a", "b"] * 500, answer=["1", "2"] * 500)[1]


def spoilt(data: bytes) -> bytes:
    """Its dictionary and its pages are noise; its footer is as it was."""
    size = int.from_bytes(data[-8:-4], "little") + 8
    return data[:4] + bytes(range(7, 207)) + data[204:-size] + data[-size:]


def without_row_groups() -> bytes:
    file = io.BytesIO()
    with pq.ParquetWriter(file, pa.schema({"prompt": pa.string()})):
        pass
    return file.getvalue()


def without_columns() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({}), file)
    return file.getvalue()


FILES = [
    Case("JSONL with a word alone", jsonl(b"prompt")),
    Case("JSONL with Python's None", jsonl(b'{"prompt": None}')),
    Case("JSONL with a comment", jsonl(b'{"prompt": "a"} // more')),
    Case("JSONL with a comma behind", jsonl(b'{"prompt": "a",}')),
    Case("JSONL of two objects a line", jsonl(b'{"prompt": "a"} {"prompt": "b"}')),
    Case("JSONL with a prompt of true", jsonl(b'{"prompt": true, "answer": "1"}')),
    Case("JSONL with a prompt of spaces", jsonl(b'{"prompt": " \\t ", "answer": "1"}')),
    Case("JSONL with a tab in a text", jsonl(b'{"prompt": "a\tb"}')),
    Case("JSONL with half an escape", jsonl(b'{"prompt": "\\u12"}')),
    Case("JSONL in UTF-16 without a mark", ("rows.jsonl", GOOD.decode().encode("utf-16-be"))),
    Case("JSONL with a 5,000-digit answer", jsonl(b'{"prompt": "a", "answer": ' + b"9" * 5_000 + b"}")),
    Case("JSONL with 1e400", jsonl(b'{"prompt": "a", "answer": 1e400}')),
    Case("a chat with a role of no meaning", jsonl(b'{"prompt": [{"role": 5, "content": "a"}]}')),
    Case("a chat without content", jsonl(b'{"prompt": [{"role": "user"}]}')),
    Case("a chat of no one", jsonl(b'{"prompt": []}')),
    Case("CSV with a field too many", csv("a,b,c")),
    Case("CSV with a field too few", csv("a")),
    Case("CSV with a quote inside", csv('a"b"c,"d"e')),
    Case("CSV with a quote left open", csv('"a,b')),
    Case("CSV without a prompt", csv(",5")),
    Case("CSV with two columns of one name", ("rows.csv", b"prompt,prompt\na,b\n")),
    Case("CSV of a header alone", ("rows.csv", b"prompt,answer\n")),
    Case("Parquet of numbers for prompts", parquet(prompt=[1, 2], answer=["a", "b"])),
    Case("Parquet without rows", parquet(prompt=pa.array([], pa.string()), answer=pa.array([], pa.string()))),
    Case("Parquet with a null for a prompt", parquet(prompt=["a", None], answer=["a", "b"])),
    Case("Parquet cut in its middle", ("rows.parquet", PARQUET[: len(PARQUET) // 2])),
    Case("Parquet without its end", ("rows.parquet", PARQUET[:-1])),
    Case("Parquet with another mark", ("rows.parquet", PARQUET[:-4] + b"PARX")),
    Case("Parquet of a footer longer than it", ("rows.parquet", PARQUET[:-8] + b"\xff\xff\xff\x7fPAR1")),
    Case("Parquet with a footer of noise", ("rows.parquet", PARQUET[:4] + b"\xff" * (len(PARQUET) - 12) + PARQUET[-8:])),
    Case("Parquet with pages of noise", ("rows.parquet", spoilt(PARQUET))),
    Case("Parquet without row groups", ("rows.parquet", without_row_groups())),
    Case("Parquet of structs for prompts", parquet(prompt=[{"a": [{"b": 1}]}], answer=["a"])),
    Case("Parquet without columns", ("rows.parquet", without_columns())),
    Case("Parquet of its mark alone", ("rows.parquet", b"PAR1PAR1")),
    Case("gzip of gzip", ("rows.jsonl.gz", gzip.compress(gzip.compress(GOOD)))),
    Case("gzip with a wrong checksum", ("rows.jsonl.gz", gzip.compress(GOOD)[:-8] + b"\0" * 8)),
    Case("a bomb of gzip", ("rows.jsonl.gz", gzip.compress(b" " * 80_000_000))),
    Case("a program", ("rows.exe", b"MZ\x90\0" * 20)),
    Case("a page", ("rows.html", b"<html></html>")),
    Case("a name turned round", ("\u202elnosj.swor", b"x")),
]  # fmt: skip
MAPPINGS = [
    Case("a prompt that is no column", {"prompt": "colour"}),
    Case("no prompt", {"prompt": ""}),
    Case("an answer that is the prompt", {"answer": "prompt"}),
    Case("an answer that is no column", {"answer": "colour"}),
    Case("a column that is none", {"columns": ["level", "colour"]}),
    Case("no name", {"name": ""}),
    Case("a name of spaces", {"name": "\u2003\u00a0"}),
    Case("a name with a NUL", {"name": "a\0"}),
    Case("a name without an end", {"name": "x" * 500}),
    Case("a prompt that is a number", {"prompt": "level"}),
]  # fmt: skip
LINKS = [
    Case("a file here", "file:///etc/passwd"),
    Case("this machine", "http://127.0.0.1/rows.jsonl"),
    Case("this machine as a number", "http://2130706433/rows.jsonl"),
    Case("the cloud's own", "http://169.254.169.254/latest/meta-data"),
    Case("no address", "rows"),
    Case("an address of no host", "https:///rows.jsonl"),
    Case("an address with a password", "https://a:b@example.org/rows.jsonl"),
    Case("a port of no meaning", "https://example.org:99999/rows.jsonl"),
    Case("a script", "javascript:alert(1)"),
    Case("an address with a line break", "https://example.org/a\nb"),
]  # fmt: skip
BEGINNINGS = [
    Case("no filename", {"filename": ""}),
    Case("a filename with a NUL", {"filename": "a\0.jsonl"}),
    Case("a filename without an end", {"filename": "x" * 5_000}),
    Case("a size in words", {"num_bytes": "big"}),
    Case("a size of nothing", {"num_bytes": "0"}),
    Case("a size below nothing", {"num_bytes": "-5"}),
    Case("a size beyond all disks", {"num_bytes": "9" * 18}),
    Case("a size of 5,000 digits", {"num_bytes": "9" * 5_000}),
]  # fmt: skip
PARTS = [
    Case("no offset", ("", b"12345")),
    Case("an offset in words", ("?offset=here", b"12345")),
    Case("an offset below zero", ("?offset=-1", b"12345")),
    Case("an offset in Arabic", ("?offset=%D9%A1", b"12345")),
    Case("an offset of 5,000 digits", ("?offset=" + "9" * 5_000, b"12345")),
    Case("an offset that is not reached", ("?offset=5", b"12345"), status=409),
    Case("a part of nothing", ("?offset=0", b"")),
    Case("a part longer than the file", ("?offset=0", b"x" * 11)),
]  # fmt: skip
BY_API = [
    Case("an import of no upload", ("/dataset-uploads/999999/import", {"name": "a", "prompt": "p"}), status=404),
    Case("a task unknown", ("/generators/telepathy/imports", {"name": "a"}), status=404),
    Case("an upload without a name", ("/dataset-uploads", {"num_bytes": 5})),
    Case("an upload of nothing", ("/dataset-uploads", {"filename": "a.jsonl", "size": 0})),
]  # fmt: skip
LOOKS = [
    Case("rows from turned lengths", "min_chars=9&max_chars=1"),
    Case("rows of a length in words", "min_chars=long"),
    Case("rows of a length below zero", "min_chars=-5"),
    Case("rows in an order of no meaning", "sort=colour"),
    Case("rows of a kind of no meaning", "kind=colour"),
]  # fmt: skip
MADE = [
    Case("a split of nothing", ("{dataset}/split", {})),
    Case("a split of words", ("{dataset}/split", {"method": "share", "share": "half", "name": "a"})),
    Case("a split of too much", ("{dataset}/split", {"method": "share", "share": "500", "name": "a"})),
    Case("a selection without a name", ("{dataset}/save", {"name": ""})),
    Case("a selection without an end", ("{dataset}/save", {"name": "x" * 500})),
]  # fmt: skip
ENDPOINTS = [
    Endpoint(
        "files of datasets",
        send_file,
        FILES,
        leaves=Dataset.objects.count,
    ),
    Endpoint("columns of a file", send_mapping, MAPPINGS, leaves=Dataset.objects.count),
    Endpoint("links to datasets", send_link, LINKS, leaves=Upload.objects.count),
    Endpoint("started uploads", begin, BEGINNINGS, leaves=Upload.objects.count),
    Endpoint("parts of a file", send_part, PARTS),
    Endpoint("datasets by the API", send_by_api, BY_API, leaves=Dataset.objects.count),
    Endpoint("rows of a dataset", look, LOOKS, status=200),
    Endpoint("datasets made here", make, MADE),
]
