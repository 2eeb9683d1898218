"""Files of other tools, sent to be made into a run."""

import gzip
import io
import json
import struct
import zipfile
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from dashboard.runs.models import Run
from dashboard.transfers.models import RunImport
from tests.dashboard.transfers.tools import (
    event_file,
    parquet,
    tensor_record,
    trl_rows,
    verl_jsonl,
)
from tests.inputs.cases import Case, Endpoint, Response, World, message_of_page

TRL = {"step": 1, "prompt": "1+1", "completion": "2", "accuracy": 1.0}
VERL = {"input": "1+1", "output": "2", "gts": "2", "score": 1.0, "step": 1}
COHORT = {
    "step": 1, "prompt": "1+1", "completion": "2", "prompt_index": 0, "position": 0,
    "rules": {"right": 1.0}, "reward": 1.0, "num_tokens": 3,
}  # fmt: skip


def send(world: World, files: dict[str, bytes]) -> Response:
    """Messages about the files and, if usable, about the run."""
    sent = [SimpleUploadedFile(name, data) for name, data in files.items()]
    address = reverse("run_imports", args=["alpha"])
    answer = world.client.post(address, {"files": sent}, follow=True)
    form = answer.context.get("form") if answer.status_code == 200 else None
    if form is None:
        return message_of_page(answer)
    given = {field.name: field.value() for field in form}
    given = {n: v for n, v in given.items() if v not in (None, False)}
    address = reverse("run_import", args=["alpha", RunImport.objects.latest("pk").pk])
    return message_of_page(
        world.client.post(address, given | {"make": "1"}, follow=True)
    )


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
    Case("a step that is a word", second(VERL, step="first")),
    Case("a step below zero", second(VERL, step=-1)),
    Case("a step that is half", second(VERL, step=1.5)),
    Case("a step beyond the database", second(VERL, step=2**31)),
    Case("a step of 5,000 digits", second(VERL, step="9" * 5_000)),
    Case("a step that is true", second(VERL, step=True)),
    Case("a step that is infinite", second(VERL, step="inf")),
    Case("a step that is a list", second(VERL, step=[1])),
    Case("no step", second(VERL, step="absent")),
    Case("a prompt that is a number", second(VERL, input=5)),
    Case("a prompt that is null", second(VERL, input=None)),
    Case("an empty chat", second(VERL, input=[])),
    Case("a chat of texts", second(VERL, input=["a", "b"])),
    Case("a message without a role", second(VERL, input=[{"content": "a"}])),
    Case("a role with a NUL", second(VERL, input=[{"role": "u\0", "content": "a"}])),
    Case("content that is a number", second(VERL, input=[{"role": "user", "content": 5}])),
    Case("content with a surrogate", second(VERL, input=[{"role": "user", "content": "\ud800"}])),
    Case("a completion with a NUL", second(VERL, output="a\0b")),
    Case("a completion with a surrogate", second(VERL, output="\udc80")),
    Case("a completion that is an object", second(VERL, output={"a": 1})),
    Case("a score that is a word", second(VERL, score="high")),
    Case("a score that is a list", second(VERL, score=[1, 2])),
    Case("an answer with a NUL", second(VERL, gts="\0")),
    Case("a score's name with a NUL", second(VERL, **{"a\0c": 1.0})),
    Case("a score's name without an end", second(VERL, **{"x" * 5_000: 1.0})),
    Case("a line that is no JSON", {"1.jsonl": verl_jsonl(1) + b"{'input': 1}\n"}),
    Case("a line cut short", {"1.jsonl": verl_jsonl(1)[:-20]}),
    Case("a line that is a list", {"1.jsonl": verl_jsonl(1) + b"[1]\n"}),
    Case("a key that is there twice", {"1.jsonl": verl_jsonl(1) + b'{"input":"a","input":"b"}\n'}),
    Case("a line 5,000 deep", {"1.jsonl": b'{"input":' + b"[" * 5_000 + b"]" * 5_000 + b"}\n"}, status=200),
    Case("bytes that are no UTF-8", {"1.jsonl": verl_jsonl(1) + b'{"input":"\xff"}\n'}),
    Case("columns of no tool", lines({"question": "a", "response": "b"}), status=200),
    Case("nothing but blank lines", {"1.jsonl": b"\n\n\n"}, status=200),
    Case("an advantage that is a word", second(TRL, advantage="plus")),
    Case("rules that are a text", second(COHORT, rules="right")),
    Case("rules that are a number", second(COHORT, rules=5)),
    Case("rules that are a list of numbers", second(COHORT, rules=[1, 2])),
    Case("a rule's name with a NUL", second(COHORT, rules={"a\0": 1.0})),
    Case("tokens beyond the database", second(COHORT, num_tokens=2**63)),
    Case("tokens below zero", second(COHORT, num_tokens=-5)),
    Case("tokens that are true", second(COHORT, num_tokens=True)),
    Case("more rules than any run has", second(COHORT, rules={f"r{n}": 1.0 for n in range(3_000)}), status=200),
    # Parquet
    Case("Parquet with a wrong byte", {"1.parquet": spoilt(parquet(trl_rows(1)), 30, b"\xff" * 20)}, status=200),
    Case("Parquet of another meaning", {"1.parquet": parquet({"a": [1], "b": [2]})}, status=200),
    Case("Parquet without rows", {"1.parquet": parquet({"step": [], "prompt": [], "completion": []})}, status=200),
    # W&B's CSV
    Case("a panel over time", {"p.csv": b'"Relative Time","a - loss"\n"1","2"\n'}, status=200),
    Case("a panel with half steps", {"p.csv": PANEL.encode() + b'"1.5","2"\n'}),
    Case("a panel with a step below zero", {"p.csv": PANEL.encode() + b'"-1","2"\n'}),
    Case("a panel with a step too large", {"p.csv": PANEL.encode() + b'"1e300","2"\n'}),
    Case("a panel with a field too many", {"p.csv": PANEL.encode() + b'"2","2","3"\n'}),
    Case("a panel with a quotation mark open", {"p.csv": PANEL.encode() + b'"2,"3\n'}),
    Case("a panel of words", {"p.csv": b'"Step","a - loss"\n"1","low"\n'}, status=200),
    Case("a panel with a NUL in a name", {"p.csv": b'"Step","a - lo\0ss"\n"1","2"\n'}, status=200),
    Case("a panel of steps alone", {"p.csv": b'"Step"\n"1"\n'}, status=200),
    # TensorBoard
    Case("events with a wrong checksum", {"events.out.tfevents.1": spoilt(EVENTS, -1, b"\x00")}),
    Case("events with a wrong length", {"events.out.tfevents.1": EVENTS + struct.pack("<Q", 2**62) + b"\0" * 8}),
    Case("events without numbers", {"events.out.tfevents.1": event_file([(1, 1.0, {})])}, status=200),
    Case("events of a step below zero", {"events.out.tfevents.1": EVENTS + tensor_record(2**64 - 5, 1.0, "loss", 1.0)}),
    Case("events of a step too large", {"events.out.tfevents.1": EVENTS + tensor_record(2**40, 1.0, "loss", 1.0)}),
    Case("an event's name with a NUL", {"events.out.tfevents.1": EVENTS + tensor_record(3, 1.0, "lo\0ss", 1.0)}),
    # archives
    Case("a zip cut short", {"a.zip": zipped()[:-30]}, status=200),
    Case("a zip with a wrong byte", {"a.zip": spoilt(zipped(), 60, b"\xff" * 30)}, status=200),
    Case("an lzma zip with a wrong byte", {"a.zip": spoilt(zipped(zipfile.ZIP_LZMA), 60, b"\xff" * 30)}, status=200),
    Case("a bzip2 zip with a wrong byte", {"a.zip": spoilt(zipped(zipfile.ZIP_BZIP2), 60, b"\xff" * 30)}, status=200),
    Case("a zip with a password", {"a.zip": with_password()}, status=200),
    Case("a zip of nothing", {"a.zip": b"PK\x05\x06" + b"\0" * 18}, status=200),
    Case("a zip of another packing", {"a.zip": zipped().replace(b"\x08\x00", b"\x63\x00")}, status=200),
    Case("a zip in a zip", {"a.zip": zipped(name="b.zip", data=zipped())}, status=200),
    Case("a name in a zip that is no UTF-8", {"a.zip": zipped(name="ü.jsonl").replace("ü".encode(), b"\xff\xfe")}, status=200),
    Case("gzip cut short", {"1.jsonl.gz": gzip.compress(verl_jsonl(1))[:-9]}, status=200),
    Case("an empty file", {"1.jsonl": b""}),
    Case("a picture", {"1.png": b"\x89PNG\r\n\x1a\n" + b"\0" * 50}, status=200),
    Case("a pickle", {"1.pkl": b"\x80\x04\x95abc"}, status=200),
    Case("no file", {}),
]  # fmt: skip
ENDPOINTS = [Endpoint("run imports", send, CASES, leaves=Run.objects.count)]
