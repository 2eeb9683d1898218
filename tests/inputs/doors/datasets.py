"""Files of datasets, what is said of their columns, and what is made of them."""

from __future__ import annotations

import gzip
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from django.core.files.uploadedfile import SimpleUploadedFile

from dashboard.datasets.models import Dataset, Upload
from tests.dashboard.runs.launching import make_dataset
from tests.inputs.cases import (
    Answer,
    Case,
    Door,
    World,
    told_as_text,
    told_by_page,
    told_by_problem,
)

GOOD = b'{"prompt": "1+1", "answer": "2", "level": 1}\n'


def send_file(world: World, sent: tuple[str, bytes]) -> Answer:
    """Until its columns are chosen, where it comes so far."""
    name, data = sent
    file = SimpleUploadedFile(name, data)
    answer = world.client.post("/alpha/datasets/upload", {"file": file})
    if answer.status_code != 302:
        return _told(answer)
    mapping = {"name": "Bad", "prompt": "prompt", "answer": "answer"}
    return _told(world.client.post(answer["Location"], mapping))


def _told(response: Any) -> Answer:
    """Of the table of refusals its rows alone."""
    answer = told_by_page(response)
    return Answer(answer.status, answer.said.rpartition("What to do")[2].strip())


def send_mapping(world: World, changes: dict[str, Any]) -> Answer:
    file = SimpleUploadedFile("rows.jsonl", GOOD)
    answer = world.client.post("/alpha/datasets/upload", {"file": file})
    mapping = {"name": "Good", "prompt": "prompt", "answer": "answer", **changes}
    return told_by_page(world.client.post(answer["Location"], mapping))


def send_link(world: World, link: str) -> Answer:
    return told_by_page(world.client.post("/alpha/datasets/upload", {"link": link}))


def begin(world: World, changes: dict[str, str]) -> Answer:
    told = {"filename": "rows.jsonl", "num_bytes": "10", "fingerprint": "f", **changes}
    return told_as_text(world.client.post("/alpha/datasets/uploads", told))


def send_part(world: World, sent: tuple[str, bytes]) -> Answer:
    query, part = sent
    told = {"filename": "rows.jsonl", "num_bytes": "10", "fingerprint": "f"}
    begun = world.client.post("/alpha/datasets/uploads", told).json()
    return told_as_text(
        world.client.post(
            f"/alpha/datasets/uploads/{begun['id']}/parts{query}",
            part,
            content_type="application/octet-stream",
        )
    )


def send_by_api(world: World, sent: tuple[str, Any]) -> Answer:
    path, tree = sent
    return told_by_problem(world.program.post(path, tree))


def look(world: World, query: str) -> Answer:
    version = make_dataset(world.team, "looked at")
    return told_by_page(
        world.client.get(f"/alpha/datasets/{version.dataset_id}/?{query}")
    )


def make(world: World, sent: tuple[str, dict[str, str]]) -> Answer:
    page, data = sent
    version = make_dataset(world.team, "made of")
    path = page.format(dataset=version.dataset_id)
    return told_by_page(world.client.post(f"/alpha/datasets/{path}", data, follow=True))


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
    Case("JSONL with a word alone", jsonl(b"prompt"), says=("2 – \"prompt\" The line is not JSON: expecting value at character 1.", "Write one JSON object on each line, keys and texts in double quotes.")),
    Case("JSONL with Python's None", jsonl(b'{"prompt": None}'), says=("2 – \"{\\\"prompt\\\": None}\" The line is not JSON: expecting value at", "Write one JSON object on each line, keys and texts in double quotes.")),
    Case("JSONL with a comment", jsonl(b'{"prompt": "a"} // more'), says=("2 – \"{\\\"prompt\\\": \\\"a\\\"} // more\" The line is not JSON: extra data at", "Write one JSON object on each line, keys and texts in double quotes.")),
    Case("JSONL with a comma behind", jsonl(b'{"prompt": "a",}'), says=("2 – \"{\\\"prompt\\\": \\\"a\\\",}\" The line is not JSON: expecting property", "Write one JSON object on each line, keys and texts in double quotes.")),
    Case("JSONL of two objects a line", jsonl(b'{"prompt": "a"} {"prompt": "b"}'), says=("2 – \"{\\\"prompt\\\": \\\"a\\\"} {\\\"prompt\\\": \\\"b\\\"}\" The line is not JSON:", "Write one JSON object on each line, keys and texts in double quotes.")),
    Case("JSONL with a prompt of true", jsonl(b'{"prompt": true, "answer": "1"}'), says=("2 prompt true The prompt is neither a text nor a list of chat", "Choose another column as the prompt, or mend the row.", "“prompt”: The prompt is neither a text nor a list of chat messages.", "Got true .")),
    Case("JSONL with a prompt of spaces", jsonl(b'{"prompt": " \\t ", "answer": "1"}'), says=("2 prompt \" \\t \" The prompt is empty.", "Fill it in, or remove the row.", "“prompt”: The prompt is empty.", "Got \" \\t \" .")),
    Case("JSONL with a tab in a text", jsonl(b'{"prompt": "a\tb"}'), says=("2 – \"{\\\"prompt\\\": \\\"a\\tb\\\"}\" The line is not JSON: invalid control", "Write one JSON object on each line, keys and texts in double quotes.")),
    Case("JSONL with half an escape", jsonl(b'{"prompt": "\\u12"}'), says=("2 – \"{\\\"prompt\\\": \\\"\\\\u12\\\"}\" The line is not JSON: invalid \\uXXXX", "Write one JSON object on each line, keys and texts in double quotes.")),
    Case("JSONL in UTF-16 without a mark", ("rows.jsonl", GOOD.decode().encode("utf-16-be")), says=("1 –", "Remove it, or save the file as UTF-8.")),
    Case("JSONL with a 5,000-digit answer", jsonl(b'{"prompt": "a", "answer": ' + b"9" * 5_000 + b"}"), says=("2 –", "Write it as text, in quotes.")),
    Case("JSONL with 1e400", jsonl(b'{"prompt": "a", "answer": 1e400}'), says=("2 answer Infinity The number is not finite.", "Use null where there is no number.", "“answer”: The number is not finite.", "Got Infinity .")),
    Case("a chat with a role of no meaning", jsonl(b'{"prompt": [{"role": 5, "content": "a"}]}'), says=("2 prompt 5 A chat message has an unknown role.", "Use one of system, user, assistant, tool.", "“prompt”: A chat message has an unknown role.", "Got 5 .")),
    Case("a chat without content", jsonl(b'{"prompt": [{"role": "user"}]}'), says=("2 prompt {\"role\": \"user\"} A chat message needs exactly a role and a", "Write it as {\"role\": \"user\", \"content\": \"…\"}.", "“prompt”: A chat message needs exactly a role and a content.", "Got {\"role\": \"user\"} .")),
    Case("a chat of nobody", jsonl(b'{"prompt": []}'), says=("2 prompt [] The prompt is neither a text nor a list of chat messages.", "Choose another column as the prompt, or mend the row.", "“prompt”: The prompt is neither a text nor a list of chat messages.", "Got [] .")),
    Case("CSV with a field too many", csv("a,b,c"), says=("3 – [\"a\", \"b\", \"c\"] The row has 3 fields, the header 2.", "Put a text that holds the separator or a line break in double quotes.")),
    Case("CSV with a field too few", csv("a"), says=("3 – [\"a\"] The row has 1 field, the header 2.", "Give it a value or an empty field for every column;", "put a text that holds a line break in double quotes.")),
    Case("CSV with a quote inside", csv('a"b"c,"d"e'), says=("3 – \"',' expected after '\\\"'\" The quotes of the row that begins here", "Put the field in double quotes and write a quote inside it as \"\".")),
    Case("CSV with a quote left open", csv('"a,b'), says=("3 – \"unexpected end of data\" The quotes of the row that begins here", "Put the field in double quotes and write a quote inside it as \"\".")),
    Case("CSV without a prompt", csv(",5"), says=("3 prompt \"\" The prompt is empty.", "Fill it in, or remove the row.", "“prompt”: The prompt is empty.", "Got \"\" .")),
    Case("CSV with two columns of one name", ("rows.csv", b"prompt,prompt\na,b\n"), says=("1 – \"prompt\" Two columns have the same name.", "Rename one of them.")),
    Case("CSV of a header alone", ("rows.csv", b"prompt,answer\n"), says=("whole file – – The file holds no rows.", "Check that it is the right file and was saved whole.")),
    Case("Parquet of numbers for prompts", parquet(prompt=[1, 2], answer=["a", "b"]), says=("1 prompt 1 The prompt is neither a text nor a list of chat messages.", "Choose another column as the prompt, or mend the row.", "2 prompt 2 The prompt is neither a text nor a list of chat messages.", "“prompt”: The prompt is neither a text nor a list of chat messages.")),
    Case("Parquet without rows", parquet(prompt=pa.array([], pa.string()), answer=pa.array([], pa.string())), says=("whole file – – The file holds no rows.", "Check that it is the right file and was saved whole.")),
    Case("Parquet with a null for a prompt", parquet(prompt=["a", None], answer=["a", "b"]), says=("2 prompt null The prompt is neither a text nor a list of chat", "Choose another column as the prompt, or mend the row.", "“prompt”: The prompt is neither a text nor a list of chat messages.", "Got null .")),
    Case("Parquet cut in its middle", ("rows.parquet", PARQUET[: len(PARQUET) // 2]), says=("The file cannot be read as Parquet.", "Write it again, for example with pandas.DataFrame.to_parquet.",)),
    Case("Parquet without its end", ("rows.parquet", PARQUET[:-1]), says=("The file cannot be read as Parquet.", "Write it again, for example with pandas.DataFrame.to_parquet.",)),
    Case("Parquet with another mark", ("rows.parquet", PARQUET[:-4] + b"PARX"), says=("The file cannot be read as Parquet.", "Write it again, for example with pandas.DataFrame.to_parquet.",)),
    Case("Parquet of a footer longer than it", ("rows.parquet", PARQUET[:-8] + b"\xff\xff\xff\x7fPAR1"), says=("The file cannot be read as Parquet.", "Write it again, for example with pandas.DataFrame.to_parquet.",)),
    Case("Parquet with a footer of noise", ("rows.parquet", PARQUET[:4] + b"\xff" * (len(PARQUET) - 12) + PARQUET[-8:]), says=("The file cannot be read as Parquet.", "Write it again, for example with pandas.DataFrame.to_parquet.",)),
    Case("Parquet with pages of noise", ("rows.parquet", spoilt(PARQUET)), says=("The file cannot be read as Parquet.", "Write it again, for example with pandas.DataFrame.to_parquet.",)),
    Case("Parquet without row groups", ("rows.parquet", without_row_groups()), says=("The file holds no rows.",)),
    Case("Parquet of structs for prompts", parquet(prompt=[{"a": [{"b": 1}]}], answer=["a"]), says=("The prompt is neither a text nor a list of chat messages.",)),
    Case("Parquet without columns", ("rows.parquet", without_columns()), says=("The file holds no rows.",)),
    Case("Parquet of its mark alone", ("rows.parquet", b"PAR1PAR1"), says=("whole file – \"Parquet file size is 8 bytes, smaller than the size", "Write it again, for example with pandas.DataFrame.to_parquet.")),
    Case("gzip of gzip", ("rows.jsonl.gz", gzip.compress(gzip.compress(GOOD))), says=("rows.jsonl.gz is packed twice.", "Unpack it once, then upload it again.")),
    Case("gzip with a wrong checksum", ("rows.jsonl.gz", gzip.compress(GOOD)[:-8] + b"\0" * 8), says=("rows.jsonl.gz: The file: From here on the file cannot be unpacked", "Got \"CRC check failed 0x0 != 0xc5261530\".", "Pack it again, or upload it as it is.")),
    Case("a bomb of gzip", ("rows.jsonl.gz", gzip.compress(b" " * 80_000_000)), says=("1 – \" … The line is longer than 8,388,608 characters.", "Shorten the row;", "texts this long do not fit a prompt.", "whole file – 67,117,056 bytes The file unpacks to more than 100 times")),
    Case("a program", ("rows.exe", b"MZ\x90\0" * 20), says=("rows.exe ends in .exe, and its beginning does not tell what it is.", "Save it as JSONL, JSON, CSV, TSV or Parquet, under a name that ends")),
    Case("a page", ("rows.html", b"<html></html>"), says=("rows.html ends in .html, and its beginning does not tell what it is.", "Save it as JSONL, JSON, CSV, TSV or Parquet, under a name that ends")),
    Case("a name turned round", ("\u202elnosj.swor", b"x"), says=("lnosj.swor ends in .swor, and its beginning does not tell what it is.", "Save it as JSONL, JSON, CSV, TSV or Parquet, under a name that ends")),
]  # fmt: skip
MAPPINGS = [
    Case("a prompt that is no column", {"prompt": "colour"}, says=("Select a valid choice.", "colour is not one of the available choices.")),
    Case("no prompt", {"prompt": ""}, says=("This field is required.",)),
    Case("an answer that is the prompt", {"answer": "prompt"}, says=('"prompt" is the prompt already.', "Choose another column, or “no answer”.",)),
    Case("an answer that is no column", {"answer": "colour"}, says=("Select a valid choice.", "colour is not one of the available choices.")),
    Case("a column that is none", {"columns": ["level", "colour"]}, says=("Select a valid choice.", "colour is not one of the available choices.")),
    Case("no name", {"name": ""}, says=("This field is required.",)),
    Case("a name of spaces", {"name": "\u2003\u00a0"}, says=("This field is required.",)),
    Case("a name with a NUL", {"name": "a\0"}, says=("Null characters are not allowed.",)),
    Case("a name without an end", {"name": "x" * 500}, says=("Ensure this value has at most 80 characters (it has 500).",)),
    Case("a prompt that is a number", {"prompt": "level"}, says=("Nothing was imported.", "Not one row is good: choose other columns below, or fix the file and", "Fix the file and upload it again 1 refused row 1 of 1 shown Line", "Choose another column as the prompt, or mend the row.",)),
]  # fmt: skip
LINKS = [
    Case("a file here", "file:///etc/passwd", says=("The address 'file:///etc/passwd' must begin with https:// and the",)),
    Case("this machine", "http://127.0.0.1/rows.jsonl", says=("127.0.0.1 is not a public address.", "For a server of your own network, an administrator adds 127.0.0.1:80",)),
    Case("this machine as a number", "http://2130706433/rows.jsonl", says=("2130706433 is 127.0.0.1, which is not a public address.", "For a server of your own network, an administrator adds 2130706433:80",)),
    Case("the cloud's own", "http://169.254.169.254/latest/meta-data", says=("169.254.169.254 is not a public address.", "For a server of your own network, an administrator adds",)),
    Case("no address", "rows", says=("'rows' is neither a URL nor the id of a dataset.", "Write https://… for a file, or owner/name, such as openai/gsm8k, for",)),
    Case("an address of no host", "https:///rows.jsonl", says=("The address 'https:///rows.jsonl' must begin with https:// and the",)),
    Case("an address with a password", "https://a:b@example.org/rows.jsonl", says=("The address of example.org holds a name or a password before the @.", "Leave it out: Cohort signs in nowhere by them.",)),
    Case("a port of no meaning", "https://example.org:99999/rows.jsonl", says=("The address 'https://example.org:99999/rows.jsonl' is no URL: Port",)),
    Case("a script", "javascript:alert(1)", says=("'javascript:alert(1)' is neither a URL nor the id of a dataset.", "Write https://… for a file, or owner/name, such as openai/gsm8k, for",)),
    Case("an address with a line break", "https://example.org/a\nb", says=("The address 'https://example.org/a\\nb' holds characters that no URL", "Write international names as their xn-- form.",)),
]  # fmt: skip
BEGINNINGS = [
    Case("no filename", {"filename": ""}, says=('{"error": "filename: This field is required."}',)),
    Case("a filename with a NUL", {"filename": "a\0.jsonl"}, says=('{"error": "filename: Null characters are not allowed."}',)),
    Case("a filename without an end", {"filename": "x" * 5_000}, says=('{"error": "filename: Ensure this value has at most 1000 characters',)),
    Case("a size in words", {"num_bytes": "big"}, says=('{"error": "num_bytes: Enter a whole number."}',)),
    Case("a size of nothing", {"num_bytes": "0"}, says=('{"error": "rows.jsonl is empty.', 'Choose a file that holds rows."}')),
    Case("a size below nothing", {"num_bytes": "-5"}, says=('{"error": "num_bytes: Ensure this value is greater than or equal to',)),
    Case("a size beyond all disks", {"num_bytes": "9" * 18}, says=('{"error": "rows.jsonl has 999,999,999,999,999,999 bytes;', "4,294,967,296 are allowed.", 'Split it into several datasets."}',)),
    Case("a size of 5,000 digits", {"num_bytes": "9" * 5_000}, says=('{"error": "num_bytes: Enter a whole number."}',)),
]  # fmt: skip
PARTS = [
    Case("no offset", ("", b"12345"), says=('{"error": "offset and content-length are whole numbers of bytes;', "got ''.\"}",)),
    Case("an offset in words", ("?offset=here", b"12345"), says=('{"error": "offset and content-length are whole numbers of bytes;', "got 'here'.\"}",)),
    Case("an offset below zero", ("?offset=-1", b"12345"), says=('{"error": "offset and content-length are whole numbers of bytes;', "got '-1'.\"}",)),
    Case("an offset in Arabic", ("?offset=%D9%A1", b"12345"), says=('{"error": "offset and content-length are whole numbers of bytes;', "got '\\u0661'.\"}",)),
    Case("an offset of 5,000 digits", ("?offset=" + "9" * 5_000, b"12345"), says=('{"error": "offset and content-length are whole numbers of bytes;', "got '9999999999999999999999999999999999999999'.\"}",)),
    Case("an offset that is not reached", ("?offset=5", b"12345"), says=('"received": 0',), status=409),
    Case("a part of nothing", ("?offset=0", b""), says=('{"error": "offset and content-length are whole numbers of bytes;', "got ''.\"}",)),
    Case("a part longer than the file", ("?offset=0", b"x" * 11), says=('{"error": "A part holds 1 to 8,388,608 bytes, and this file has 10 to', 'got 11."}',)),
]  # fmt: skip
BY_API = [
    Case("an import of no upload", ("/dataset-uploads/999999/import", {"name": "a", "prompt": "p"}), status=404, says=("Alpha has no file 999999 that waits.",)),
    Case("a task unknown", ("/generators/telepathy/imports", {"name": "a"}), status=404, says=("There is no address /api/v1/generators/telepathy/imports.", "/api/v1/openapi.json has them all.")),
    Case("an upload without a name", ("/dataset-uploads", {"num_bytes": 5}), says=("body.filename: Field required;", "body.fingerprint: Field required body.filename: Field required")),
    Case("an upload of nothing", ("/dataset-uploads", {"filename": "a.jsonl", "size": 0}), says=("body.num_bytes: Field required;", "body.fingerprint: Field required;", "body.size: Extra inputs are not permitted;", "got 0 body.num_bytes: Field required body.fingerprint: Field required")),
]  # fmt: skip
LOOKS = [
    Case("rows from turned lengths", "min_chars=9&max_chars=1", says=("No prompt is at least 9 and at most 1 characters long.", "Swap the two, or leave one empty.",)),
    Case("rows of a length in words", "min_chars=long", says=("Enter a whole number.",)),
    Case("rows of a length below zero", "min_chars=-5", says=("Ensure this value is greater than or equal to 0.",)),
    Case("rows in an order of no meaning", "sort=colour", says=("Select a valid choice.", "colour is not one of the available choices.")),
    Case("rows of a kind of no meaning", "kind=colour", says=("Select a valid choice.", "colour is not one of the available choices.")),
]  # fmt: skip
MADE = [
    Case("a split of nothing", ("{dataset}/split", {}), says=("This field is required.",)),
    Case("a split of words", ("{dataset}/split", {"method": "share", "share": "half", "name": "a"}), says=("This field is required.", "Enter a number.")),
    Case("a split of too much", ("{dataset}/split", {"method": "share", "share": "500", "name": "a"}), says=("This field is required.", "Ensure this value is less than or equal to 99.999.")),
    Case("a selection without a name", ("{dataset}/save", {"name": ""}), says=("A new dataset needs a name.", "Give one.")),
    Case("a selection without an end", ("{dataset}/save", {"name": "x" * 500}), says=("Ensure this value has at most 80 characters (it has 500).",)),
]  # fmt: skip
DOORS = [
    Door(
        "files of datasets",
        send_file,
        FILES,
        leaves=Dataset.objects.count,
        is_slow=True,
    ),
    Door("columns of a file", send_mapping, MAPPINGS, leaves=Dataset.objects.count),
    Door("links to datasets", send_link, LINKS, leaves=Upload.objects.count),
    Door("uploads begun", begin, BEGINNINGS, leaves=Upload.objects.count),
    Door("parts of a file", send_part, PARTS),
    Door("datasets by the API", send_by_api, BY_API, leaves=Dataset.objects.count),
    Door("rows of a dataset", look, LOOKS, status=200),
    Door("datasets made here", make, MADE),
]
