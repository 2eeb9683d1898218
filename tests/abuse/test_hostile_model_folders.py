"""Model folders with pipes, devices, links and endless templates."""

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree

import pytest
from django.conf import settings

from dashboard.accounts.models import Team
from dashboard.datasets import tokenizer_pool
from dashboard.datasets.models import DatasetVersion, TokenLengths
from dashboard.datasets.row import Row
from dashboard.datasets.token_preview import Uncountable, count_tokens
from dashboard.datasets.tokenizer_pool import TokenizerProcess
from dashboard.runs.launch.base_models import (
    read_characters,
    read_chat_template,
    read_model_config,
)
from tests.dashboard.completions.factories import store_dataset
from tests.dashboard.datasets.chat_model import save_chat_model
from tests.dashboard.runs.stories import queue_run
from trainer.sizes.model_sizes import weights_in

ENDLESS = "{% for i in range(9999) %}" * 4 + "{% endfor %}" * 4
READ_BY_THE_ENGINE = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json",
    "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "spiece.model", "model.safetensors", "additional_chat_templates/tool_use.jinja",
)  # fmt: skip
READERS: dict[str, Callable[[Path], object]] = {
    "config.json": read_model_config,
    "tokenizer_config.json": read_chat_template,
    "tokenizer.json": read_characters,
}


def _make_pipe(path: Path) -> None:
    os.mkfifo(path)


def _link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _make_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**30)


KINDS = (_make_pipe, _link_to_zeros, _make_large)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    save_chat_model(folder)
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    header = b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
    weights = len(header).to_bytes(8, "little") + header + bytes(8)
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def _spoilt(model: Path, into: Path, names: tuple[str, ...]) -> Iterator[Path]:
    """A copy for each of these files and each kind."""
    for number, (name, make) in enumerate((n, m) for n in names for m in KINDS):
        folder = into / str(number)
        copytree(model, folder)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        make(folder / name)
        yield folder


def test_the_engine_refuses_pipes_devices_and_huge_files(model, tmp_path):
    from trainer.tokenizers import load_tokenizer

    taken = []
    for folder in _spoilt(model, tmp_path, READ_BY_THE_ENGINE):
        try:
            load_tokenizer(str(folder))
        except ValueError:
            continue
        taken.append(folder)

    assert len(taken) == 1  # weights may be of any size
    assert (taken[0] / "model.safetensors").stat().st_size == 2**30
    assert load_tokenizer(str(model)).chat_template


def test_pages_read_a_bounded_part_of_model_files(model, tmp_path):
    for name, read in READERS.items():
        (tmp_path / name).mkdir()
        for folder in _spoilt(model, tmp_path / name, (name,)):
            (folder / "chat_template.jinja").unlink()
            assert not read(folder), (name, folder)
    for folder in _spoilt(model, tmp_path, ("model.safetensors",)):
        if (folder / "model.safetensors").stat().st_size != 2**30:
            with pytest.raises(ValueError, match=r"model\.safetensors"):
                weights_in(folder, bytes_each=4)


def _leading_out(model: Path, into: Path) -> Iterator[tuple[Path, str]]:
    """A copy for each file that is a link to the same file elsewhere, and its name."""
    outside = into / "outside"
    copytree(model, outside)
    (outside / "sub").mkdir()
    for name in (*READ_BY_THE_ENGINE, "sub/x.safetensors"):
        (outside / name).parent.mkdir(exist_ok=True)
        (outside / name).touch()
        folder = into / str(name).replace("/", "-")
        copytree(model, folder)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(outside / name)
        yield folder, name
    for name in ("additional_chat_templates", "sub"):
        copytree(model, into / name)
        (into / name / name).symlink_to(outside / name)
        yield into / name, name
    copytree(model, into / "of-the-kernel")
    (into / "of-the-kernel" / "chat_template.jinja").unlink()
    (into / "of-the-kernel" / "chat_template.jinja").symlink_to("/proc/self/environ")
    yield into / "of-the-kernel", "chat_template.jinja"
    copytree(model, into / "named")
    index = into / "named" / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"w": "../outside/model.safetensors"}}')
    yield into / "named", "outside"


def test_files_outside_the_folder_are_read_by_no_one(model, tmp_path):
    from trainer.hub import check_source
    from trainer.tokenizers import load_tokenizer

    for folder, name in _leading_out(model, tmp_path):
        for refuse in (load_tokenizer, lambda path: check_source(path, revision=None)):
            with pytest.raises(ValueError, match=Path(name).name):
                refuse(str(folder))
        if read := READERS.get(name):
            (folder / "chat_template.jinja").unlink()
            assert not read(folder), name
        elif name == "chat_template.jinja":
            (folder / "tokenizer_config.json").unlink()
            assert not read_chat_template(folder)
        if name == "model.safetensors":
            with pytest.raises(ValueError, match=r"model\.safetensors"):
                weights_in(folder, bytes_each=4)


def test_links_within_a_hub_cache_are_followed(model, tmp_path):
    from trainer.tokenizers import load_tokenizer

    snapshot = tmp_path / "models--a--b" / "snapshots" / "1f2e"
    copytree(model, snapshot.parent.parent / "blobs")
    snapshot.mkdir(parents=True)
    for file in model.iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")

    assert load_tokenizer(str(snapshot)).chat_template
    assert read_chat_template(snapshot)
    assert read_model_config(snapshot) == read_model_config(model)
    assert weights_in(snapshot, bytes_each=4) == weights_in(model, bytes_each=4)

    blobs = snapshot.parent.parent / "blobs"
    blobs.rename(tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    assert read_model_config(snapshot) is None


@pytest.mark.parametrize("path", ["/" + "x" * 300, "/a" * 3_000, "/a\0b"])
def test_an_impossible_path_is_refused(path):
    from trainer.tokenizers import load_tokenizer

    for read in READERS.values():
        assert not read(Path(path))
    for refuse in (
        lambda: weights_in(Path(path), bytes_each=4),
        lambda: load_tokenizer(path),
    ):
        with pytest.raises(ValueError):  # noqa: PT011 - that it is no other
            refuse()


def test_the_headers_of_many_files_are_bounded(tmp_path):
    header = b'{"__metadata__": "' + b"x" * 9_000_000 + b'"}'
    names = [f"{number}.safetensors" for number in range(10)]
    for name in names:
        (tmp_path / name).write_bytes(len(header).to_bytes(8, "little") + header)
    places = ", ".join(f'"{name}": "{name}"' for name in names)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(f'{{"weight_map": {{{places}}}}}')

    with pytest.raises(ValueError, match="too large"):
        weights_in(tmp_path, bytes_each=4)


def test_an_endless_template_is_ended(tmp_path, monkeypatch):
    """In a copy of this process, which has the libraries loaded."""
    from trainer import tokenizers
    from trainer.commands import token_lengths

    save_chat_model(tmp_path / "model", ENDLESS)
    monkeypatch.setattr(tokenizers, "MAX_SECONDS", 0.5)
    row = io.StringIO(Row(prompt="1+1=").canonical() + "\n")
    monkeypatch.setattr(sys, "stdin", row)
    options = argparse.Namespace(model=str(tmp_path / "model"), revision=None)

    child = os.fork()
    if child == 0:
        try:
            token_lengths.main(options)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)

    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGPROF


@pytest.mark.slow
def test_no_process_blocks_on_a_pipe(model, tmp_path, monkeypatch):
    """As the web process and a worker start them."""
    monkeypatch.setattr(tokenizer_pool, "WAIT_SECONDS", 60.0)
    for folder in _spoilt(model, tmp_path, ("tokenizer.json",)):
        with pytest.raises(Uncountable, match="tokenizer"):
            count_tokens(str(folder), [Row(prompt="1+1=")])
        warm = TokenizerProcess(str(folder))
        answer = warm.ask({"index": 0})
        warm.close()
        assert "tokenizer.json" in answer["problem"]


@pytest.fixture
def version(team) -> DatasetVersion:
    return store_dataset(team, [Row(prompt="a")], name="a")


@pytest.mark.django_db
def test_only_models_of_the_team_are_read(alice_client, team, version, charlie):
    other = Team.objects.get(slug="other")
    data = Path(settings.COHORT_DATA)
    theirs = [
        f"{data}/models/{other.pk}/1/model",
        f"{data}/runs/{queue_run(other, name='x').pk}/checkpoints/1/model",
        f"{data}/models/{team.pk}/../{other.pk}/1/model",
        f"/proc/self/root{data}/models/{other.pk}/1/model",
        f"../models/{other.pk}/1/model",
        "./model",
    ]
    at = f"/alpha/datasets/{version.dataset_id}"
    for path in theirs:
        counted = alice_client.post(f"{at}/statistics", {"model": path})
        assert counted.status_code == 422, path
        shown = alice_client.post(f"{at}/prompt", {"model": path}).context["preview"]
        assert shown.problem, path
        assert not shown.pending, path
    assert not TokenLengths.objects.exists()

    own = f"{data}/models/{team.pk}/1/model"
    assert alice_client.post(f"{at}/statistics", {"model": own}).status_code == 302
