"""A hub that is out of reach costs seconds, not minutes."""

import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from tests.trainer.tiny import (
    config_tree,
    read_events,
    run_trainer,
    start_trainer,
    write_config,
)
from trainer import hub
from trainer.tokenizers import load_tokenizer

MODEL = "org/tiny"


@contextlib.contextmanager
def answering(status: int) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """No one reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


@pytest.fixture
def silent() -> Iterator[str]:
    """It takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty one of this process, which has asked no hub yet."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(hub, "WAIT_SECONDS", 0.5)
    monkeypatch.setattr(hub, "_answered", set())
    return folder


def ask_at(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """As HF_ENDPOINT does before the hub's library is loaded."""
    path = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://{host}")
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"http://{host}{path}"
    )


def fill(cache: Path, model_folder: Path) -> Path:
    """As the hub's library lays it out; its snapshot."""
    place = cache / "models--org--tiny"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("0" * 40)
    snapshot = place / "snapshots" / ("0" * 40)
    shutil.copytree(model_folder, snapshot)
    return snapshot


@pytest.fixture
def config(rows_path, tmp_path) -> Path:
    tree = config_tree(
        Path(MODEL),
        rows_path,
        optim={"num_steps": 1},
        evaluation={"every_steps": 0},
        checkpoint={"every_steps": 0},
    )
    return write_config(tmp_path, tree)


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("silent", "no answer within 0.5 s"),
        ("127.0.0.1:1", "refused"),
        pytest.param("no.such.host.invalid", "its name", marks=pytest.mark.slow),
    ],
)
def test_a_hub_that_gives_no_answer_ends_the_run_with_a_sentence(
    host, why, silent, config, cache, monkeypatch
):
    host = silent if host == "silent" else host
    ask_at(monkeypatch, host)
    before = time.monotonic()

    done = run_trainer("run", config, "--out", config.parent / "out")

    assert time.monotonic() - before < 10
    (event,) = read_events(config.parent / "out" / "events.jsonl")
    assert (done.returncode, event["type"]) == (1, "run_failed")
    for word in (host, why, MODEL, "HF_HUB_OFFLINE=1"):
        assert word in event["error"]


@pytest.mark.slow  # it waits as long as a person would
def test_a_hub_that_never_answers_ends_the_run_in_one_line(silent, config):
    trainer = start_trainer(
        "run",
        config,
        *("--out", config.parent / "out"),
        env={"HF_ENDPOINT": f"http://{silent}"},
    )
    output, _ = trainer.communicate(timeout=60)

    assert trainer.returncode == 1
    assert output.count("\n") == 1
    assert f"{hub.WAIT_SECONDS:g} s" in output


def test_a_model_that_is_wholly_in_the_cache_needs_no_hub(
    silent, config, cache, model_folder, monkeypatch
):
    fill(cache, model_folder)
    ask_at(monkeypatch, silent)
    before = time.monotonic()

    done = run_trainer("run", config, "--out", config.parent / "out")

    assert done.returncode == 0, done.stderr
    assert silent in done.stderr
    assert time.monotonic() - before < 10
    assert huggingface_hub.is_offline_mode()


def test_a_cache_that_lacks_weights_is_not_enough_for_a_run_but_for_its_prompts(
    cache, model_folder, monkeypatch
):
    (fill(cache, model_folder) / "model.safetensors").unlink()
    ask_at(monkeypatch, "127.0.0.1:1")

    with pytest.raises(ValueError, match=r"127\.0\.0\.1:1"):
        hub.check_source(MODEL, revision=None)
    tokenizer = load_tokenizer(MODEL)

    assert tokenizer.decode(tokenizer.encode("a+b")) == "a+b"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"weight_map": 1}', '{"weight_map": {"a": 1, "b": "c"}}']
)
def test_a_damaged_list_of_weights_is_named(text, tmp_path):
    (tmp_path / hub.WEIGHTS_INDEX).write_text(text)

    with pytest.raises(ValueError, match=hub.WEIGHTS_INDEX):
        hub.weight_files(str(tmp_path), None)


def test_offline_it_requests_nothing(cache, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "_ask", None)

    hub.check_source(MODEL, revision=None)


@pytest.mark.parametrize(("status", "is_refused"), [(404, False), (503, True)])
def test_a_hub_that_refuses_is_there_and_one_that_fails_is_not(
    status, is_refused, cache, monkeypatch
):
    with answering(status) as host:
        ask_at(monkeypatch, host)

        if is_refused:
            with pytest.raises(ValueError, match=str(status)):
                hub.check_source(MODEL, revision=None)
        else:
            hub.check_source(MODEL, revision=None)
