"""What is left in files: uploads, archives, checkpoints, models, logs."""

import contextlib
import hashlib
import io
import json
import os
import tarfile
import tempfile
import traceback
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

from django.core.files.uploadedfile import SimpleUploadedFile
from hypothesis import strategies as st

from cohort import follow
from cohort.formats.files import Part
from dashboard.accounts.models import Team, User
from dashboard.datasets.parsing.parquet import read_batches
from dashboard.datasets.parsing.streams import Source
from dashboard.operations import backups
from dashboard.operations.backups import MANIFEST, BackupFault, Manifest
from dashboard.runs.checkpoints.files import Damaged, read_manifest, verify_file
from dashboard.runs.launch.base_models import read_chat_template, read_model_config
from dashboard.supervision.event_log import Lines, read_events
from dashboard.transfers.import_files import begin_import, discard, store_file, unpack
from tests.dashboard.datasets.parsing.test_parsing_properties import SOUND
from tests.dashboard.supervision.logs import LogBuilder
from tests.dashboard.supervision.sending import lines_of
from tests.inputs.parsers.row import (
    ANY_TEXT,
    BODIES,
    JSON,
    NUMBERS,
    TREES,
    Parser,
    dumped,
    folder_with,
    shaped,
    spoilt,
)
from trainer.data import read_rows
from trainer.output.checkpoint import verify_checkpoint
from trainer.rewards import command
from trainer.run.state import read_changes
from trainer.sizes.model_sizes import read_dimensions, weights_in


def in_subprocess(check: Callable[[], None]) -> None:
    """In a process of its own, which a library may abort: the server reads so too."""
    with tempfile.TemporaryFile("w+") as errors:
        pid = os.fork()
        if not pid:
            try:
                check()
            except BaseException:  # noqa: BLE001 - errors below
                traceback.print_exc(file=errors)
                errors.flush()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        errors.seek(0)
        assert os.waitstatus_to_exitcode(status) <= 0, errors.read()


def check_parquet(content: bytes) -> None:
    def check() -> None:
        os.close(2)  # what a library says as it aborts
        source = Source(Path(file.name), "parquet", "")
        assert [item for batch in read_batches(source) for item in batch]

    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        in_subprocess(check)


EVENTS = [json.loads(line) for line in lines_of(LogBuilder().started().stepped(1))]

CHANGED_EVENTS = st.builds(
    lambda event, changes: dumped(event | changes).encode(),
    st.sampled_from(EVENTS),
    st.dictionaries(
        st.sampled_from(sorted({n for e in EVENTS for n in e})) | ANY_TEXT, JSON
    ),
)


def check_events(lines: list[bytes]) -> None:
    events = read_events(Lines(first=1, texts=tuple(lines), end=0), attempt=1)

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


def _backup(manifest: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, text in (("database.dump", "PGDMP"), (MANIFEST, manifest)):
            info = tarfile.TarInfo(name)
            info.size = len(text.encode("utf-8", "surrogatepass"))
            tar.addfile(info, io.BytesIO(text.encode("utf-8", "surrogatepass")))
    return file.getvalue()


SOUND_MANIFEST = Manifest(
    format=2,
    made_at=datetime(2026, 3, 1, tzinfo=UTC),
    postgres=18,
    migrations=[],
    has_checkpoints=False,
    key_is_inside=False,
    sums={"database.dump": hashlib.sha256(b"PGDMP").hexdigest()},
)
BACKUP = _backup(SOUND_MANIFEST.model_dump_json())


def check_backup(content: bytes) -> None:
    with (
        folder_with(b=content) as folder,
        contextlib.suppress(BackupFault),
        backups.reading(folder / "b") as tar,
    ):
        backups.unpack(tar, backups.read_manifest(tar), folder / "draft")


def check_backups_manifest(text: str) -> None:
    check_backup(_backup(text))


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
        read_chat_template(folder)
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


def check_scored(text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    with folder_with(rows=data) as folder, contextlib.suppress(ValueError):
        for _, sample in command._samples(folder / "rows"):
            assert isinstance(sample.prompt, str)


def check_dump(text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    with folder_with(dump=data) as folder:
        for form in follow.FORMATS.values():
            source = form(folder)
            lines = follow.MetricLines(source, folder / "dump")
            lines.read()
            follower = follow.Follower(source, Mock(), metrics=lines)
            follower._report(1, Part(path=folder / "dump", end=len(data)))


PARSERS = [
    Parser("Parquet, spoilt", spoilt(SOUND).filter(bool), check_parquet,
           ("dashboard.datasets.parsing.parquet", "dashboard.datasets.parsing.parquet")),
    Parser("Parquet, any bytes", st.binary(max_size=200).map(lambda d: b"PAR1" + d + b"PAR1"),
           check_parquet, ("dashboard.datasets.parsing.parquet",)),
    Parser("events, any bytes", st.lists(st.binary(max_size=60), max_size=4), check_events,
           ("dashboard.supervision.event_log", "trainer.events")),
    Parser("events, nearly right", st.lists(CHANGED_EVENTS, max_size=3), check_events,
           ("dashboard.supervision.event_log", "trainer.events")),
    Parser("zip archives of an import", spoilt(ZIP), check_zip, ("dashboard.transfers.import_files",)),
    Parser("backups", spoilt(BACKUP), check_backup, ("dashboard.operations.backups",)),
    Parser("backups' manifests", TREES | shaped(format=NUMBERS, sums=JSON).map(dumped),
           check_backups_manifest, ("dashboard.operations.backups",)),
    Parser("checkpoints' manifests", MANIFESTS | BODIES, check_manifest,
           ("dashboard.runs.checkpoints.files", "trainer.output.checkpoint")),
    Parser("models' configurations", MODEL_CONFIGS | TREES, check_model_config,
           ("dashboard.runs.launch.base_models", "trainer.sizes.model_sizes")),
    Parser("headers of weights", st.tuples(HEADERS | TREES, st.sampled_from([0, 0, -1, 9, 2**40])),
           check_weights, ("trainer.sizes.model_sizes",)),
    Parser("changes of a run", shaped(changes=st.lists(shaped(
           number=NUMBERS, after_step=NUMBERS, settings=JSON))).map(lambda t: dumped(t).encode()) | BODIES,
           check_changes, ("trainer.run.state",)),
    Parser("rows of prompts", ROWS, check_rows, ("trainer.data",)),
    Parser("completions to score", st.lists(shaped(prompt=JSON, completion=ANY_TEXT, answer=JSON,
           columns=JSON).map(dumped) | TREES, max_size=3).map("\n".join), check_scored,
           ("trainer.rewards.command",)),
    Parser("files of other trainers", st.lists(shaped(input=ANY_TEXT, output=ANY_TEXT, score=NUMBERS, step=NUMBERS,
           gts=JSON, prompt=JSON, completion=JSON, task=JSON, traces=JSON, content=JSON, rewards=JSON,
           iteration=JSON, group_idx=JSON, steps=JSON, total_reward=JSON).map(dumped) | TREES,
           max_size=3).map("\n".join), check_dump, ("cohort.follow", "cohort.formats")),
]  # fmt: skip
