"""Files of other tools, sent to be made into a run."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from dashboard.exchange.models import RunImport
from dashboard.runs.models import Run
from tests.dashboard.exchange.tools import (
    event_file,
    parquet,
    tensor_record,
    trl_rows,
    verl_jsonl,
)
from tests.inputs.cases import Answer, Case, Door, World, told_by_page

TRL = {"step": 1, "prompt": "1+1", "completion": "2", "accuracy": 1.0}
VERL = {"input": "1+1", "output": "2", "gts": "2", "score": 1.0, "step": 1}
COHORT = {
    "step": 1, "prompt": "1+1", "completion": "2", "prompt_index": 0, "position": 0,
    "rules": {"right": 1.0}, "reward": 1.0, "num_tokens": 3,
}  # fmt: skip


def send(world: World, files: dict[str, bytes]) -> Answer:
    """What is said of the files, and where something is fit what is said of its run."""
    sent = [SimpleUploadedFile(name, data) for name, data in files.items()]
    address = reverse("run_imports", args=["alpha"])
    answer = world.client.post(address, {"files": sent}, follow=True)
    form = answer.context.get("form") if answer.status_code == 200 else None
    if form is None:
        return told_by_page(answer)
    given = {field.name: field.value() for field in form}
    given = {n: v for n, v in given.items() if v not in (None, False)}
    address = reverse("run_import", args=["alpha", RunImport.objects.latest("pk").pk])
    return told_by_page(world.client.post(address, given | {"make": "1"}, follow=True))


def lines(*trees: dict[str, Any]) -> dict[str, bytes]:
    return {"1.jsonl": b"".join(json.dumps(t).encode() + b"\n" for t in trees)}


def second(tree: dict[str, Any], **changes: Any) -> dict[str, bytes]:
    """A good line, then a bad one."""
    return lines(tree, {n: v for n, v in (tree | changes).items() if v != "absent"})


def zipped(
    compression: int = zipfile.ZIP_DEFLATED,
    name: str = "1.jsonl",
    data: bytes = verl_jsonl(1) * 20,
) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", compression) as archive:
        archive.writestr(name, data)
    return sink.getvalue()


def spoilt(data: bytes, at: int, by: bytes) -> bytes:
    at %= len(data)
    return data[:at] + by + data[at + len(by) :]


def with_password() -> bytes:
    data = zipped()
    local, central = data.find(b"PK\x03\x04"), data.find(b"PK\x01\x02")
    data = spoilt(data, local + 6, b"\x01\x00")
    return spoilt(data, central + 8, b"\x01\x00")


EVENTS = event_file([(1, 5.0, {"train/loss": 1.0}), (2, 6.0, {"train/loss": 0.5})])
PANEL = '"Step","a - train/reward"\n"1","0.25"\n'
CASES = [
    # JSONL of completions
    Case("a step that is a word", second(VERL, step="first"), says=("1.jsonl Line 2, column \"step\" The step is no whole number from 0 on.", "Give each row the step that it was sampled at, in a column step.", "\"first\"")),
    Case("a step below zero", second(VERL, step=-1), says=("1.jsonl Line 2, column \"step\" The step is no whole number from 0 on.", "Give each row the step that it was sampled at, in a column step.", "-1")),
    Case("a step that is half", second(VERL, step=1.5), says=("1.jsonl Line 2, column \"step\" The step is no whole number from 0 on.", "Give each row the step that it was sampled at, in a column step.", "1.5")),
    Case("a step beyond the database", second(VERL, step=2**31), says=("1.jsonl Line 2, column \"step\" The step is no whole number from 0 on.", "Give each row the step that it was sampled at, in a column step.", "2147483648")),
    Case("a step of 5,000 digits", second(VERL, step="9" * 5_000), says=("1.jsonl Line 2, column \"step\" The step is no whole number from 0 on.", "Give each row the step that it was sampled at, in a column step.", "\"999999999999999999999999999999999999999999999999999999999999999999999")),
    Case("a step that is true", second(VERL, step=True), says=("1.jsonl Line 2, column \"step\" The step is no whole number from 0 on.", "Give each row the step that it was sampled at, in a column step.", "true")),
    Case("a step that is infinite", second(VERL, step="inf"), says=("1.jsonl Line 2, column \"step\" The step is no whole number from 0 on.", "Give each row the step that it was sampled at, in a column step.", "\"inf\"")),
    Case("a step that is a list", second(VERL, step=[1]), says=("1.jsonl Line 2, column \"step\" The step is no whole number from 0 on.", "Give each row the step that it was sampled at, in a column step.", "[1]")),
    Case("no step", second(VERL, step="absent"), says=("1.jsonl Line 2, column \"step\" The step is no whole number from 0 on.", "Give each row the step that it was sampled at, in a column step.", "null")),
    Case("a prompt that is a number", second(VERL, input=5), says=("1.jsonl Line 2, column \"input\" It is neither a text nor messages.", "Write it as a text.", "5")),
    Case("a prompt that is null", second(VERL, input=None), says=("1.jsonl Line 2, column \"input\" It is neither a text nor messages.", "Write it as a text.", "null")),
    Case("an empty chat", second(VERL, input=[]), says=("1.jsonl Line 2, column \"input\" It is neither a text nor messages.", "Write it as a text.", "[]")),
    Case("a chat of texts", second(VERL, input=["a", "b"]), says=("1.jsonl Line 2, column \"input\" It is neither a text nor messages.", "Write it as a text.", "[\"a\", \"b\"]")),
    Case("a message without a role", second(VERL, input=[{"content": "a"}]), says=("1.jsonl Line 2, column \"input\" It is neither a text nor messages.", "Write it as a text.", "[{\"content\": \"a\"}]")),
    Case("a role with a NUL", second(VERL, input=[{"role": "u\0", "content": "a"}]), says=("1.jsonl Line 2, column \"input\" The text holds a NUL character.", "Remove it.", "\"u\\u0000\"")),
    Case("content that is a number", second(VERL, input=[{"role": "user", "content": 5}]), says=("1.jsonl Line 2, column \"input\" It is neither a text nor messages.", "Write it as a text.", "5")),
    Case("content with a surrogate", second(VERL, input=[{"role": "user", "content": "\ud800"}]), says=("1.jsonl Line 2, column \"input\" The text holds half of a surrogate", "Remove it.", "\"\\ud800\"")),
    Case("a completion with a NUL", second(VERL, output="a\0b"), says=("1.jsonl Line 2, column \"output\" The text holds a NUL character.", "Remove it.", "\"a\\u0000b\"")),
    Case("a completion with a surrogate", second(VERL, output="\udc80"), says=("1.jsonl Line 2, column \"output\" The text holds half of a surrogate", "Remove it.", "\"\\udc80\"")),
    Case("a completion that is an object", second(VERL, output={"a": 1}), says=("1.jsonl Line 2, column \"output\" It is neither a text nor messages.", "Write it as a text.", "{\"a\": 1}")),
    Case("a score that is a word", second(VERL, score="high"), says=("1.jsonl Line 2, column \"score\" It is no number.", "Write a number, or nothing.", "\"high\"")),
    Case("a score that is a list", second(VERL, score=[1, 2]), says=("1.jsonl Line 2, column \"score\" It is no number.", "Write a number, or nothing.", "[1, 2]")),
    Case("an answer with a NUL", second(VERL, gts="\0"), says=("1.jsonl Line 2, column \"gts\" The text holds a NUL character.", "Remove it.", "\"\\u0000\"")),
    Case("a score's name with a NUL", second(VERL, **{"a\0c": 1.0}), says=("1.jsonl Line 2 A column's name holds a NUL character.", "Rename the column.", "\"a\\u0000c\"")),
    Case("a score's name without an end", second(VERL, **{"x" * 5_000: 1.0}), says=("1.jsonl Line 2 A column's name is longer than 200 characters.", "Shorten it.", "\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx")),
    Case("a line that is no JSON", {"1.jsonl": verl_jsonl(1) + b"{'input': 1}\n"}, says=("1.jsonl Line 5 The line is not JSON: expecting property name enclosed", "Write one JSON object on each line, keys and texts in double quotes.", "\"{'input': 1}\"")),
    Case("a line cut short", {"1.jsonl": verl_jsonl(1)[:-20]}, says=("1.jsonl Line 4 The line is not JSON: expecting value at character 95.", "Write one JSON object on each line, keys and texts in double quotes.", "\", \\\"step\\\": 1, \\\"acc\\\":\"")),
    Case("a line that is a list", {"1.jsonl": verl_jsonl(1) + b"[1]\n"}, says=("1.jsonl Line 5 The line is not a JSON object.", "Write it as an object with named columns, {\"prompt\": …}.", "[1]")),
    Case("a key that is there twice", {"1.jsonl": verl_jsonl(1) + b'{"input":"a","input":"b"}\n'}, says=("1.jsonl Line 5 A key occurs twice in one object.", "Keep one of the two.", "\"input\"")),
    Case("a line 5,000 deep", {"1.jsonl": b'{"input":' + b"[" * 5_000 + b"]" * 5_000 + b"}\n"}, says=("1.jsonl Line 1 Lists and objects are nested more than 64 deep.", "Flatten the value, or leave the column out.", "\"{\\\"input\\\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\""), status=200),
    Case("bytes that are no UTF-8", {"1.jsonl": verl_jsonl(1) + b'{"input":"\xff"}\n'}, says=("1.jsonl Line 5 The line is not valid text in the file's encoding.", "Save the file as UTF-8.", "byte 0xFF in \"{\\\"input\\\":\\\"\\udcff\\\"}\\n\"")),
    Case("columns of no tool", lines({"question": "a", "response": "b"}), says=("1.jsonl Line 1 Its columns are none of TRL's completions (prompt,", "Export it from one of them as it is, or leave the file out.", "[\"question\", \"response\"]"), status=200),
    Case("nothing but blank lines", {"1.jsonl": b"\n\n\n"}, says=("1.jsonl The file The file holds no rows.", "Check that it is the right file and was saved whole."), status=200),
    Case("an advantage that is a word", second(TRL, advantage="plus"), says=("1.jsonl Line 2, column \"advantage\" It is no number.", "Write a number, or nothing.", "\"plus\"")),
    Case("rules that are a text", second(COHORT, rules="right"), says=("1.jsonl Line 2, column \"rules\" It tells no rule's score.", "Write {name: score, …}.", "\"right\"")),
    Case("rules that are a number", second(COHORT, rules=5), says=("1.jsonl Line 2, column \"rules\" It tells no rule's score.", "Write {name: score, …}.", "5")),
    Case("rules that are a list of numbers", second(COHORT, rules=[1, 2]), says=("1.jsonl Line 2, column \"rules\" It tells no rule's score.", "Write {name: score, …}.", "[1, 2]")),
    Case("a rule's name with a NUL", second(COHORT, rules={"a\0": 1.0}), says=("1.jsonl Line 2, column \"rules\" The text holds a NUL character.", "Remove it.", "\"a\\u0000\"")),
    Case("tokens beyond the database", second(COHORT, num_tokens=2**63), says=("1.jsonl Line 2, column \"num_tokens\" It is no number of tokens.", "Write a whole number from 0 to 2,147,483,647, or nothing.", "9223372036854775808")),
    Case("tokens below zero", second(COHORT, num_tokens=-5), says=("1.jsonl Line 2, column \"num_tokens\" It is no number of tokens.", "Write a whole number from 0 to 2,147,483,647, or nothing.", "-5")),
    Case("tokens that are true", second(COHORT, num_tokens=True), says=("1.jsonl Line 2, column \"num_tokens\" It is no number of tokens.", "Write a whole number from 0 to 2,147,483,647, or nothing.", "true")),
    Case("more rules than any run has", second(COHORT, rules={f"r{n}": 1.0 for n in range(3_000)}), says=("1.jsonl has scores of more than 300 rules.", "Leave out the columns that are no rule's."), status=200),
    # Parquet
    Case("Parquet with a wrong byte", {"1.parquet": spoilt(parquet(trl_rows(1)), 30, b"\xff" * 20)}, says=("1.parquet The file The file cannot be read as Parquet.", "Write it again, for example with pandas.DataFrame.to_parquet.", "\"Couldn't deserialize thrift: don't know what type:"), status=200),
    Case("Parquet of another meaning", {"1.parquet": parquet({"a": [1], "b": [2]})}, says=("1.parquet Line 1 Its columns are none of TRL's completions (prompt,", "Export it from one of them as it is, or leave the file out.", "[\"a\", \"b\"]"), status=200),
    Case("Parquet without rows", {"1.parquet": parquet({"step": [], "prompt": [], "completion": []})}, says=("The files hold no completion and no metric value, so there is no run", "Send others."), status=200),
    # W&B's CSV
    Case("a panel over time", {"p.csv": b'"Relative Time","a - loss"\n"1","2"\n'}, says=("p.csv Line 2 Its columns are none of TRL's completions (prompt,", "Export it from one of them as it is, or leave the file out.", "[\"Relative Time\", \"a - loss\"]"), status=200),
    Case("a panel with half steps", {"p.csv": PANEL.encode() + b'"1.5","2"\n'}, says=("p.csv Line 3, column \"Step\" The step is no whole number from 0 on.", "Export the panel over steps.", "\"1.5\"")),
    Case("a panel with a step below zero", {"p.csv": PANEL.encode() + b'"-1","2"\n'}, says=("p.csv Line 3, column \"Step\" The step is no whole number from 0 on.", "Export the panel over steps.", "\"-1\"")),
    Case("a panel with a step too large", {"p.csv": PANEL.encode() + b'"1e300","2"\n'}, says=("p.csv Line 3, column \"Step\" The step is no whole number from 0 on.", "Export the panel over steps.", "\"1e300\"")),
    Case("a panel with a field too many", {"p.csv": PANEL.encode() + b'"2","2","3"\n'}, says=("p.csv Line 3 The row has 3 fields, the header 2.", "Put a text that holds the separator or a line break in double quotes.", "[\"2\", \"2\", \"3\"]")),
    Case("a panel with a quotation mark open", {"p.csv": PANEL.encode() + b'"2,"3\n'}, says=("p.csv Line 3 The quotes of the row that begins here do not match.", "Put the field in double quotes and write a quote inside it as \"\".", "\"',' expected after '\\\"'\"")),
    Case("a panel of words", {"p.csv": b'"Step","a - loss"\n"1","low"\n'}, says=("The files hold no completion and no metric value, so there is no run", "Send others."), status=200),
    Case("a panel with a NUL in a name", {"p.csv": b'"Step","a - lo\0ss"\n"1","2"\n'}, says=("p.csv Line 1 The line holds a NUL character.", "Remove it, or save the file as UTF-8.", "\"\\\"Step\\\",\\\"a - lo\\u0000ss\\\"\\n\""), status=200),
    Case("a panel of steps alone", {"p.csv": b'"Step"\n"1"\n'}, says=("p.csv Line 2 Its columns are none of TRL's completions (prompt,", "Export it from one of them as it is, or leave the file out.", "[\"Step\"]"), status=200),
    # TensorBoard
    Case("events with a wrong checksum", {"events.out.tfevents.1": spoilt(EVENTS, -1, b"\x00")}, says=("events.out.tfevents.1 Line 3 Record 3 is damaged: it fails its check.", "Copy the file again, whole;", "what comes before is read.")),
    Case("events with a wrong length", {"events.out.tfevents.1": EVENTS + struct.pack("<Q", 2**62) + b"\0" * 8}, says=("events.out.tfevents.1 Line 4 Record 4 is damaged: its length fails", "Copy the file again, whole;", "what comes before is read.")),
    Case("events without numbers", {"events.out.tfevents.1": event_file([(1, 1.0, {})])}, says=("The files hold no completion and no metric value, so there is no run", "Send others."), status=200),
    Case("events of a step below zero", {"events.out.tfevents.1": EVENTS + tensor_record(2**64 - 5, 1.0, "loss", 1.0)}, says=("events.out.tfevents.1 Line 4 The step is below 0 or too large.", "Steps go from 0 to 2,147,483,647.", "-5")),
    Case("events of a step too large", {"events.out.tfevents.1": EVENTS + tensor_record(2**40, 1.0, "loss", 1.0)}, says=("events.out.tfevents.1 Line 4 The step is below 0 or too large.", "Steps go from 0 to 2,147,483,647.", "1099511627776")),
    Case("an event's name with a NUL", {"events.out.tfevents.1": EVENTS + tensor_record(3, 1.0, "lo\0ss", 1.0)}, says=("events.out.tfevents.1 Line 4 The name of a value holds a NUL", "Log it under another name.", "\"lo\\u0000ss\"")),
    # archives
    Case("a zip cut short", {"a.zip": zipped()[:-30]}, says=("a.zip The file a.zip is a zip archive or a spreadsheet.", "Unpack it, or save it as JSONL, JSON, CSV, TSV or Parquet.", "Send TRL's or verl's completions, event files or W&B's CSV."), status=200),
    Case("a zip with a wrong byte", {"a.zip": spoilt(zipped(), 60, b"\xff" * 30)}, says=("a.zip cannot be unpacked: Error -3 while decompressing data: invalid", "Pack it again, or send the files as they are."), status=200),
    Case("an lzma zip with a wrong byte", {"a.zip": spoilt(zipped(zipfile.ZIP_LZMA), 60, b"\xff" * 30)}, says=("a.zip cannot be unpacked: Corrupt input data.", "Pack it again, or send the files as they are."), status=200),
    Case("a bzip2 zip with a wrong byte", {"a.zip": spoilt(zipped(zipfile.ZIP_BZIP2), 60, b"\xff" * 30)}, says=("a.zip cannot be unpacked: Invalid data stream.", "Pack it again, or send the files as they are."), status=200),
    Case("a zip with a password", {"a.zip": with_password()}, says=("a.zip has a password.", "Pack it again without one."), status=200),
    Case("a zip of nothing", {"a.zip": b"PK\x05\x06" + b"\0" * 18}, says=("The files hold no completion and no metric value, so there is no run", "Send others."), status=200),
    Case("a zip of another packing", {"a.zip": zipped().replace(b"\x08\x00", b"\x63\x00")}, says=("a.zip cannot be unpacked: That compression method is not supported.", "Pack it again, or send the files as they are."), status=200),
    Case("a zip in a zip", {"a.zip": zipped(name="b.zip", data=zipped())}, says=("a.zip/b.zip The file a.zip/b.zip is a zip archive or a spreadsheet.", "Unpack it, or save it as JSONL, JSON, CSV, TSV or Parquet.", "Send TRL's or verl's completions, event files or W&B's CSV."), status=200),
    Case("a name in a zip that is no UTF-8", {"a.zip": zipped(name="ü.jsonl").replace("ü".encode(), b"\xff\xfe")}, says=("a.zip cannot be unpacked: a name in it is not UTF-8.", "Pack it again, or send the files as they are."), status=200),
    Case("gzip cut short", {"1.jsonl.gz": gzip.compress(verl_jsonl(1))[:-9]}, says=("1.jsonl.gz The file 1.jsonl.gz: The file: From here on the file", "Got \"Compressed file ended before the end-of-stream marker was", "Pack it again, or upload it as it is.", "Send TRL's or verl's completions, event files or W&B's CSV."), status=200),
    Case("an empty file", {"1.jsonl": b""}, says=("1.jsonl is empty.", "Leave it out.")),
    Case("a picture", {"1.png": b"\x89PNG\r\n\x1a\n" + b"\0" * 50}, says=("1.png The file 1.png ends in .png, and its beginning does not tell", "Save it as JSONL, JSON, CSV, TSV or Parquet, under a name that ends", "Send TRL's or verl's completions, event files or W&B's CSV."), status=200),
    Case("a pickle", {"1.pkl": b"\x80\x04\x95abc"}, says=("1.pkl The file 1.pkl is a pickle.", "Unpack it, or save it as JSONL, JSON, CSV, TSV or Parquet.", "Send TRL's or verl's completions, event files or W&B's CSV."), status=200),
    Case("no file", {}, says=("No file was chosen.", "Choose one, or several.")),
]  # fmt: skip
DOORS = [Door("run imports", send, CASES, leaves=Run.objects.count, is_slow=True)]
