"""What other programs send or leave behind: servers, hubs, judges, trainers, files."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import os
import tempfile
import traceback
import zipfile
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from urllib.error import HTTPError

import torch
from django.core.files.uploadedfile import SimpleUploadedFile
from hypothesis import strategies as st
from safetensors.torch import save

from dashboard.accounts.models import Team, User
from dashboard.api.problems import Problem
from dashboard.api.resources import outside
from dashboard.datasets.fetching import hub
from dashboard.datasets.fetching.request import NotFetched
from dashboard.datasets.parsing.parquet import read_batches
from dashboard.datasets.parsing.source import Source
from dashboard.exchange.imports.files import begin_import, discard, store_file, unpack
from dashboard.runs.checkpoints.manifest import Damaged, read_manifest, verify_file
from dashboard.runs.launch.model_config import has_chat_template, read_model_config
from dashboard.training.follow import Lines
from dashboard.training.reading import read_events
from dashboard.upkeep.backups import archive, restoring
from dashboard.upkeep.backups.faults import BackupFault
from tests.dashboard.datasets.parsing.test_parsing_properties import SOUND
from tests.dashboard.training.logs import LogBuilder
from tests.dashboard.training.outside.sending import lines_of
from tests.inputs.parsers.row import (
    ANY_TEXT,
    DEEP,
    JSON,
    NUMBERS,
    Parser,
    dumped,
    of,
    shaped,
    spoilt,
)
from trainer.checkpoint import verify_checkpoint
from trainer.client import verl
from trainer.client.http import Refused, Server, Unreachable
from trainer.dimensions import read_dimensions
from trainer.hearing import read_changes
from trainer.internet.address import Gate, Target
from trainer.prompts import read_rows
from trainer.references import wire as reference_wire
from trainer.references.client import ServerReference
from trainer.reward_weights import weights_in
from trainer.rewards import command
from trainer.rewards.code_rows import read_tests
from trainer.rewards.json_documents import NotJson, read_json
from trainer.rewards.model_judge import client as judge
from trainer.rewards.model_judge.verdict import Unreadable, read_score
from trainer.rewards.rules.xml_well_formed import XmlWellFormedParams, score_xml
from trainer.rewards.sample import NotApplicable, Sample
from trainer.rewards.sandbox.verdicts import parsed
from trainer.rollout import wire as rollout_wire
from trainer.rollout.engine import SamplingParams
from trainer.rollout.sampled import Sampled, SeededPrompt
from trainer.rollout.server_client import RolloutClient
from trainer.serving.connection import Connection, _sentence

TREES = JSON.map(dumped) | DEEP | st.text(max_size=30)
BODIES = TREES.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(
    max_size=60
)


@contextlib.contextmanager
def folder_with(**files: bytes) -> Iterator[Path]:
    """A folder; `config__json` is its config.json."""
    with tempfile.TemporaryDirectory() as name:
        for file, content in files.items():
            (Path(name) / file.replace("__", ".")).write_bytes(content)
        yield Path(name)


def apart(check: Callable[[], None]) -> None:
    """In a process of its own, which a library may abort: the server reads so too."""
    with tempfile.TemporaryFile("w+") as told:
        pid = os.fork()
        if not pid:
            try:
                check()
            except BaseException:  # noqa: BLE001 - told below
                traceback.print_exc(file=told)
                told.flush()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        told.seek(0)
        assert os.waitstatus_to_exitcode(status) <= 0, told.read()


def check_parquet(content: bytes) -> None:
    def check() -> None:
        os.close(2)  # what a library says as it aborts
        source = Source(Path(file.name), "parquet", "")
        assert [item for batch in read_batches(source) for item in batch]

    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        apart(check)


EVENTS = [json.loads(line) for line in lines_of(LogBuilder().started().stepped(1))]
CHANGED_EVENTS = st.builds(
    lambda event, changes: dumped(event | changes).encode(),
    st.sampled_from(EVENTS),
    st.dictionaries(
        st.sampled_from(sorted({n for e in EVENTS for n in e})) | ANY_TEXT, JSON
    ),
)


def check_events(lines: list[bytes]) -> None:
    events = read_events(Lines(first=1, texts=tuple(lines), end=0), epoch=1)

    assert [event.line for event in events] == list(range(1, len(lines) + 1))
    for event in events:
        event.model_dump_json()


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("steps/1.jsonl", '{"step": 1}\n' * 9)
        packed.writestr("2.jsonl", "")
    return file.getvalue()


ZIP = _zip()


def check_zip(content: bytes) -> None:
    team, _ = Team.objects.get_or_create(slug="inputs", defaults={"name": "Inputs"})
    user, _ = User.objects.get_or_create(username="inputs")
    run_import = begin_import(team, user)
    try:
        with contextlib.suppress(ValueError):
            store_file(run_import, SimpleUploadedFile("a.zip", content))
            unpack(run_import)
            for file in run_import.files.all():
                assert file.path.stat().st_size == file.num_bytes
    finally:
        discard(run_import)


def _backup() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "b"
        with archive.writing(path) as writer:
            writer.add_text("backup.json", '{"format": 1}')
            writer.add_text("tables/a", "1\t2\n")
        return path.read_bytes()


BACKUP = _backup().rstrip(b"\0")


def check_backup(content: bytes) -> None:
    with folder_with(b=content) as folder, contextlib.suppress(BackupFault):
        (folder / "draft").mkdir()
        with archive.reading(folder / "b") as tar:
            archive.read_text(tar, "backup.json")
            archive.unpack(tar, folder / "draft")


def check_backups_manifest(text: str) -> None:
    with contextlib.suppress(BackupFault):
        restoring._read_manifest(text)


HUB = Gate(asks="A hub is asked", variable="X")
ENTRY = shaped(
    type=st.just("file"), path=ANY_TEXT, size=NUMBERS, oid=ANY_TEXT, lfs=JSON
)
COMMIT = st.fixed_dictionaries(
    {"sha": st.just("0" * 40) | JSON}, optional={"id": st.just("a/b") | JSON,
                                                 "cardData": JSON}
)  # fmt: skip
HUB_ANSWERS = st.tuples(
    COMMIT.map(dumped) | TREES,
    st.lists(ENTRY, max_size=4).map(dumped) | TREES,
    ANY_TEXT | st.sampled_from(['<https://huggingface.co/x?cursor=1>; rel="next"']),
)


def check_hub(given: tuple[str, str, str]) -> None:
    commit, entries, link = given
    answers = [(commit, ""), (entries, link), ("[]", "")]

    def ask(target: Target, *_: Any, **__: Any) -> Any:
        text, follows = answers.pop(0)
        body = io.BytesIO(text.encode("utf-8", "surrogatepass"))
        return SimpleNamespace(
            target=target, read=body.read, headers={"Link": follows}, close=body.close
        )

    asked = hub.Hub(HUB, None, on_wait=lambda: None)
    with patch.object(hub, "ask", ask), contextlib.suppress(NotFetched):
        for file in asked.find("a/b", "main").files:
            file.path.encode()
            assert file.num_bytes >= 0


MANIFESTS = st.fixed_dictionaries(
    {"files": st.dictionaries(st.sampled_from(["a", "../b", "/etc", "\0"]) | ANY_TEXT,
                              shaped(sha256=ANY_TEXT, bytes=NUMBERS), max_size=2) | JSON}
).map(lambda tree: dumped(tree).encode())  # fmt: skip


def check_manifest(data: bytes) -> None:
    with folder_with(manifest__json=data, a=b"") as folder:
        with contextlib.suppress(ValueError):
            verify_checkpoint(folder)
        with contextlib.suppress(Damaged):
            manifest, _ = read_manifest(folder)
            for name, expected in manifest.files.items():
                verify_file(folder, name, expected, lambda: None)


NAMES = ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size",
         "num_experts", "intermediate_size", "tie_word_embeddings", "model_type",
         "text_config", "chat_template")  # fmt: skip
MODEL_CONFIGS = st.dictionaries(st.sampled_from(NAMES), NUMBERS | JSON).map(dumped)


def check_model_config(text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    with folder_with(config__json=data, tokenizer_config__json=data) as folder:
        read_model_config(folder)
        has_chat_template(folder)
        with contextlib.suppress(ValueError):
            assert read_dimensions(str(folder)).num_parameters >= 0


HEADERS = st.dictionaries(
    st.sampled_from(["a", "__metadata__"]),
    shaped(dtype=st.just("F32"), shape=st.lists(NUMBERS, max_size=3)) | JSON,
).map(dumped)


def check_weights(given: tuple[str, int]) -> None:
    text, off = given
    data = text.encode("utf-8", "surrogatepass")
    length = max(0, len(data) + off).to_bytes(8, "little")
    with folder_with(model__safetensors=length + data) as folder:
        with contextlib.suppress(ValueError):
            weights_in(folder, bytes_each=2)
        (folder / "model.safetensors.index.json").write_bytes(data)
        with contextlib.suppress(ValueError):
            weights_in(folder, bytes_each=2)


def check_changes(data: bytes) -> None:
    with folder_with(changes__json=data) as folder, contextlib.suppress(ValueError):
        read_changes(folder / "changes.json")


ROWS = st.lists(
    shaped(
        prompt=ANY_TEXT | st.lists(shaped(role=ANY_TEXT, content=ANY_TEXT), max_size=2),
        answer=ANY_TEXT, columns=JSON,
    ).map(dumped) | TREES, max_size=3,
).map("\n".join)  # fmt: skip


def check_rows(text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    with folder_with(rows=data) as folder, contextlib.suppress(ValueError):
        assert read_rows(folder / "rows")


TENSORS = st.builds(
    lambda shape, dtype, low: torch.full(shape, low, dtype=dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.int64, torch.int32, torch.float32, torch.float64, torch.bool]),
    st.sampled_from([0, 1, 2, -1, 99]),
)  # fmt: skip


def tensors(*names: str) -> st.SearchStrategy[bytes]:
    every = st.fixed_dictionaries(dict.fromkeys(names, TENSORS))
    return every.map(save) | st.dictionaries(st.sampled_from(names), TENSORS).map(save)


ASKED = rollout_wire.Question(
    prompts=[SeededPrompt(token_ids=(1, 2), seed=3)] * 2,
    params=SamplingParams(max_new_tokens=3, temperature=1.0),
    eos_ids=(0,),
    version=1,
)
QUESTION = rollout_wire.pack_question(ASKED)
ANSWER = rollout_wire.pack_answer(
    [Sampled(token_ids=(1, 0), logprobs=(-0.5, -1.0))] * 2, version=1
)


def check_rollout(body: bytes) -> None:
    with contextlib.suppress(ValueError):
        found = rollout_wire.unpack_question(body, vocabulary=9)
        assert all(0 <= t < 9 for prompt in found.prompts for t in prompt.token_ids)
    with contextlib.suppress(ValueError):
        sampled = rollout_wire.unpack_answer(body, ASKED)
        assert len(sampled) == len(ASKED.prompts)


def check_order(body: bytes) -> None:
    for message in (rollout_wire.Order, rollout_wire.Adapted):
        with contextlib.suppress(ValueError):
            assert message.read(body).rank >= 0


SCORED = reference_wire.pack_question(
    reference_wire.Question(
        input_ids=torch.tensor([[1, 2, 3]]),
        places=torch.tensor([0, 1]),
        targets=torch.tensor([2, 3]),
        temperature=1.0,
    )
)


def check_reference(body: bytes) -> None:
    with contextlib.suppress(ValueError):
        found = reference_wire.unpack_question(body, vocabulary=9, max_length=3)
        assert found.targets.shape == found.places.shape
    with contextlib.suppress(ValueError):
        assert reference_wire.unpack_answer(body, count=2).shape == (2,)


CHOICE = shaped(message=shaped(content=ANY_TEXT), finish_reason=st.just("length"))
COMPLETIONS = shaped(
    choices=st.lists(CHOICE, max_size=2),
    usage=shaped(total_tokens=NUMBERS),
    error=shaped(message=ANY_TEXT),
)
DATES = st.builds(
    "{} {} Jan {} {}:00:00 {}".format,
    st.sampled_from(["Mon,", ""]),
    st.integers(-1, 40),
    st.integers(0, 10**12),
    st.integers(-1, 30),
    st.sampled_from(["GMT", "+0100", "+9999", "-99999", "+" + "9" * 17, ""]),
)


def check_judge(given: tuple[str, str]) -> None:
    text, wait = given
    body = text.encode("utf-8", "surrogatepass")
    with contextlib.suppress(judge.NoReply):
        reply = judge._read_reply(body, about_tokens=1)
        assert reply.num_tokens > 0
    judge._error_message(body).encode()
    seconds = judge._wait_seconds({"Retry-After": wait})
    assert seconds is None or (seconds >= 0 and not math.isnan(seconds))


def check_verdict(reply: str) -> None:
    for form in ("json_field", "last_number", "yes_no"):
        with contextlib.suppress(Unreadable):
            assert 0 <= read_score(reply, form, field="score", low=-2, high=10) <= 1


def check_document(text: str) -> None:
    with contextlib.suppress(NotJson):
        json.dumps(read_json(text), allow_nan=False)


XML = of(
    "<>/&;!?-[]='\" \n", "answer", "<a>", "</a>", "<!DOCTYPE", "<![CDATA[", "&amp;"
)
SHAPES = ("document", "fragment")


def check_xml(text: str) -> None:
    for shape in SHAPES:
        params = XmlWellFormedParams(shape=shape, elements="a,answer")
        assert 0 <= score_xml(Sample("p", text), params) <= 1


CASES = st.lists(
    shaped(input=JSON, output=ANY_TEXT, stdin=ANY_TEXT, fn_name=ANY_TEXT), max_size=3
)
COLUMNS = CASES | CASES.map(dumped) | shaped(inputs=CASES, outputs=CASES) | JSON | TREES


def check_tests(column: Any) -> None:
    with contextlib.suppress(NotApplicable):
        read_tests(Sample("p", "c", columns={"tests": column}), "tests", most=2)


def check_reply(body: bytes) -> None:
    parsed(body)


SERVER = Server("https://cohort.example.org", "t")


def check_client(given: tuple[bytes, int, str]) -> None:
    body, status, wait = given
    headers = Message()
    headers["Retry-After"] = wait
    refused = HTTPError(SERVER.url, status, "No", headers, io.BytesIO(body))
    for opened in (lambda *_: io.BytesIO(body), _raising(refused)):
        with (
            patch.object(Server, "_open", opened),
            contextlib.suppress(Unreachable, Refused),
        ):
            SERVER.get("/runs")


def _raising(error: Exception) -> Callable[..., Any]:
    def opened(*_: Any) -> Any:
        raise error

    return opened


def check_model_servers(body: bytes) -> None:
    reference = ServerReference("http://127.0.0.1:1", token="t", fingerprint="f")
    rollout = RolloutClient(
        "http://127.0.0.1:1", token="t", fingerprint="f", patience_seconds=0
    )
    acts: list[Callable[[], object]] = [
        reference.check_model,
        rollout._check_model,
        lambda: rollout.look_for_places(["a"], rank=1),
        lambda: rollout.load(["a"], rank=1, alpha=1.0),
    ]
    with patch.object(Connection, "ask", lambda *_, **__: body):
        for act in acts:
            with contextlib.suppress(ValueError):
                act()
    held = SimpleNamespace(line=body, close=lambda: None)
    with (
        patch.object(rollout, "_check_model"),
        patch.object(Connection, "open", lambda *_: held),
        contextlib.suppress(ValueError),
    ):
        rollout.hold()
    assert isinstance(rollout._version, int)
    assert len(_sentence(body).encode()) <= 2_000


def check_scored(text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    with folder_with(rows=data) as folder, contextlib.suppress(ValueError):
        for _, sample in command._samples(folder / "rows"):
            assert isinstance(sample.prompt, str)


def check_dump(text: str) -> None:
    with folder_with(dump=text.encode("utf-8", "surrogatepass")) as folder:
        for row in verl._rows(folder / "dump"):
            verl._completion(row)


def check_batch(body: bytes) -> None:
    with contextlib.suppress(Problem):
        assert len(outside._unzip(body)) <= outside.MAX_BATCH_BYTES + 1


PARSERS = [
    Parser("Parquet, spoilt", spoilt(SOUND).filter(bool), check_parquet,
           ("dashboard.datasets.parsing.parquet", "dashboard.datasets.parsing.parquet_sizes")),
    Parser("Parquet, any bytes", st.binary(max_size=200).map(lambda d: b"PAR1" + d + b"PAR1"),
           check_parquet, ("dashboard.datasets.parsing.parquet",)),
    Parser("events, any bytes", st.lists(st.binary(max_size=60), max_size=4), check_events,
           ("dashboard.training.reading", "trainer.events")),
    Parser("events, nearly right", st.lists(CHANGED_EVENTS, max_size=3), check_events,
           ("dashboard.training.reading", "trainer.events")),
    Parser("zip archives of an import", spoilt(ZIP), check_zip, ("dashboard.exchange.imports.files",)),
    Parser("backups", spoilt(BACKUP), check_backup, ("dashboard.upkeep.backups.archive",)),
    Parser("backups' manifests", TREES | shaped(format=NUMBERS, tables=JSON).map(dumped),
           check_backups_manifest, ("dashboard.upkeep.backups.restoring",)),
    Parser("a hub's answers", HUB_ANSWERS, check_hub, ("dashboard.datasets.fetching.hub",)),
    Parser("checkpoints' manifests", MANIFESTS | BODIES, check_manifest,
           ("dashboard.runs.checkpoints.manifest", "trainer.checkpoint")),
    Parser("models' configurations", MODEL_CONFIGS | TREES, check_model_config,
           ("dashboard.runs.launch.model_config", "trainer.dimensions")),
    Parser("headers of weights", st.tuples(HEADERS | TREES, st.sampled_from([0, 0, -1, 9, 2**40])),
           check_weights, ("trainer.reward_weights",)),
    Parser("changes of a run", shaped(changes=st.lists(shaped(
           number=NUMBERS, after_step=NUMBERS, settings=JSON))).map(lambda t: dumped(t).encode()) | BODIES,
           check_changes, ("trainer.hearing",)),
    Parser("rows of prompts", ROWS, check_rows, ("trainer.prompts",)),
    Parser("a rollout server's bodies", spoilt(QUESTION) | spoilt(ANSWER)
           | tensors("tokens", "lengths", "seeds", "eos_ids", "max_new_tokens", "temperature", "version")
           | tensors("tokens", "logprobs", "lengths", "version") | st.binary(max_size=99),
           check_rollout, ("trainer.rollout.wire",)),
    Parser("a rollout server's orders", BODIES | shaped(names=JSON, layers=JSON, rank=NUMBERS,
           alpha=NUMBERS).map(lambda tree: dumped(tree).encode()), check_order, ("trainer.rollout.wire",)),
    Parser("a reference server's bodies", spoilt(SCORED)
           | tensors("input_ids", "places", "targets", "temperature") | tensors("logprobs")
           | st.binary(max_size=99), check_reference, ("trainer.references.wire",)),
    Parser("a judge's answers", st.tuples(COMPLETIONS.map(dumped) | TREES, DATES | ANY_TEXT | NUMBERS.map(str)),
           check_judge, ("trainer.rewards.model_judge.client",)),
    Parser("a judge's verdicts", shaped(score=NUMBERS).map(dumped) | NUMBERS.map("Score: {}/10".format)
           | TREES | ANY_TEXT, check_verdict, ("trainer.rewards.model_judge.verdict",)),
    Parser("JSON of a completion", TREES, check_document, ("trainer.rewards.json_documents",)),
    Parser("XML of a completion", XML, check_xml, ("trainer.rewards.rules.xml_well_formed",)),
    Parser("tests of a row", COLUMNS, check_tests, ("trainer.rewards.code_rows",)),
    Parser("what judged code replies", BODIES, check_reply, ("trainer.rewards.sandbox.verdicts",)),
    Parser("what a server tells the client", st.tuples(
           BODIES | shaped(title=JSON, detail=JSON, status=JSON).map(lambda tree: dumped(tree).encode()),
           st.sampled_from([307, 409, 503]), NUMBERS.map(str) | st.sampled_from(["²", "1" * 400, ""])),
           check_client, ("trainer.client.http",)),
    Parser("what a model's server answers", BODIES | shaped(fingerprint=st.just("f"), max_length=NUMBERS,
           can_take=JSON, version=NUMBERS, error=JSON).map(lambda tree: dumped(tree).encode()),
           check_model_servers, ("trainer.references.client", "trainer.rollout.server_client",
                                 "trainer.serving.connection")),
    Parser("completions to score", st.lists(shaped(prompt=JSON, completion=ANY_TEXT, answer=JSON,
           columns=JSON).map(dumped) | TREES, max_size=3).map("\n".join), check_scored,
           ("trainer.rewards.command",)),
    Parser("dumps of verl", st.lists(shaped(input=ANY_TEXT, output=ANY_TEXT, score=NUMBERS, step=NUMBERS,
           gts=JSON).map(dumped) | TREES, max_size=3).map("\n".join), check_dump, ("trainer.client.verl",)),
    Parser("batches of an outside trainer", st.binary(max_size=99).map(gzip.compress)
           | spoilt(gzip.compress(b"{}\n" * 99, mtime=0)) | st.binary(max_size=99), check_batch,
           ("dashboard.api.resources.outside",)),
]  # fmt: skip
