"""The tokenizer pool is limited, and a page gets its answer before others load."""

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboard.datasets import token_preview, tokenizer_pool
from dashboard.datasets.row import Row
from dashboard.datasets.tokenizer_pool import (
    ALL_IN_USE,
    LOADING,
    OWN_IN_USE,
    Busy,
    TokenizerPool,
    TokenizerProcess,
)
from tests.dashboard.completions.factories import store_dataset
from tests.dashboard.datasets.chat_model import save_chat_model

QUESTION = {
    "index": 0,
    "row": {"prompt": "3", "answer": None, "columns": {}},
    "data": {},
}


@pytest.fixture
def pool(monkeypatch) -> Iterator[TokenizerPool]:
    monkeypatch.setattr(tokenizer_pool, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(tokenizer_pool, "ABANDONED_SECONDS", 3_600.0)
    pool = TokenizerPool()
    yield pool
    for process in pool.processes.values():
        process.close()


def load(pool: TokenizerPool, team_id: int, model: str) -> None:
    with pytest.raises(Busy, match=LOADING):
        pool.ask(team_id=team_id, model=model, question=QUESTION)


def answer(
    pool: TokenizerPool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    monkeypatch.setattr(tokenizer_pool, "WAIT_SECONDS", 60.0)
    return pool.ask(team_id=1, model=str(model), question=QUESTION)


def test_tokenizer_processes_are_limited_and_not_shared(pool):
    for team_id in (1, 2, 3):
        load(pool, team_id, "/a")

    assert len({process.child.pid for process in pool.processes.values()}) == 3
    with pytest.raises(Busy, match=ALL_IN_USE):
        pool.ask(team_id=4, model="/a", question=QUESTION)


def test_a_team_has_two_at_most(pool):
    load(pool, 1, "/a")
    load(pool, 1, "/b")

    with pytest.raises(Busy, match=OWN_IN_USE):
        pool.ask(team_id=1, model="/c", question=QUESTION)


@pytest.mark.parametrize("model", ["", "/a"])
def test_a_process_has_the_python_of_tasksets(monkeypatch, settings, model):
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(
        tokenizer_pool, "Child", lambda *_, **options: started.append(options)
    )
    monkeypatch.setenv("HF_TOKEN", "hf_1")
    settings.TASKSETS_PYTHON = "/nowhere/python"

    TokenizerProcess(model)

    [environment] = [options["environment"] for options in started]
    assert environment["COHORT_ENVIRONMENTS_PYTHON"] == "/nowhere/python"
    assert ("HF_TOKEN" in environment) == bool(model)


def test_the_process_unused_for_longest_ends_for_another_team(pool):
    for team_id in (1, 2, 3):
        load(pool, team_id, "/a")
    pool.processes[1, "/a"].has_answered = pool.processes[2, "/a"].has_answered = True
    load(pool, 1, "/a")
    ended = pool.processes[2, "/a"].child

    load(pool, 4, "/a")

    assert sorted(pool.processes) == [(1, "/a"), (3, "/a"), (4, "/a")]
    assert not ended.is_alive()


def test_a_process_without_a_waiting_page_ends_for_another_team(pool):
    for team_id in (1, 2, 3):
        load(pool, team_id, "/a")
    pool.processes[2, "/a"].asked_at -= 10_000

    load(pool, 4, "/a")

    assert sorted(pool.processes) == [(1, "/a"), (3, "/a"), (4, "/a")]


def test_a_process_that_is_rendering_does_not_end(pool):
    load(pool, 1, "/a")
    process = pool.processes[1, "/a"]

    with process._lock:
        assert not process.close()

    assert process.child.is_alive()


def test_a_tokenizer_that_loads_for_too_long_ends(pool, monkeypatch):
    load(pool, 1, "/a")
    monkeypatch.setattr(tokenizer_pool, "LOAD_SECONDS", 0.0)

    reply = pool.ask(team_id=1, model="/a", question=QUESTION)

    assert "0 s" in reply["problem"]
    assert pool.processes[1, "/a"].child._process.wait(5) < 0


@pytest.mark.slow  # a process of its own
def test_a_failed_process_is_replaced(pool, tmp_path, monkeypatch):
    problem = answer(pool, tmp_path, monkeypatch)["problem"]
    save_chat_model(tmp_path)

    assert str(tmp_path) in problem
    assert answer(pool, tmp_path, monkeypatch)["num_tokens"]


@pytest.mark.slow  # a process of its own
def test_a_template_does_not_get_all_memory(pool, tmp_path, monkeypatch):
    save_chat_model(tmp_path / "model", template="{{ 'a' * 9000000000 }}")

    reply = answer(pool, tmp_path / "model", monkeypatch)

    assert "too much memory" in reply["problem"]


@pytest.mark.slow  # a process of its own
def test_a_rendering_times_out(pool, tmp_path, monkeypatch):
    save_chat_model(tmp_path / "model")
    monkeypatch.setattr(tokenizer_pool, "RENDER_SECONDS", 0.0)

    assert "0 s" in answer(pool, tmp_path / "model", monkeypatch)["problem"]


def test_a_waiting_page_shows_the_reason_and_polls(
    alice_client, team, pool, monkeypatch
):
    rows = [Row(prompt="3 plus 4?")]
    version = store_dataset(team, rows)
    monkeypatch.setattr(token_preview, "tokenizers", pool)
    for team_id in (-1, -2, -3):
        load(pool, team_id, "/a")

    address = f"/alpha/datasets/{version.dataset_id}/prompt"
    page = alice_client.post(address, {"model": "/a"}).text

    assert ALL_IN_USE in page
    assert "delay:1s" in page


@pytest.mark.slow  # a process of its own
def test_an_idle_process_ends(tmp_path, monkeypatch):
    """In a copy of this process, which has the libraries loaded."""
    from trainer.commands import preview

    save_chat_model(tmp_path)
    monkeypatch.setattr(preview, "IDLE_SECONDS", 1)
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as stdin, os.fdopen(write_end):
        monkeypatch.setattr(sys, "stdin", stdin)
        child = os.fork()
        if child == 0:
            try:
                preview.main(argparse.Namespace(model=str(tmp_path), revision=None))
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)

    assert os.WTERMSIG(status) == signal.SIGALRM
