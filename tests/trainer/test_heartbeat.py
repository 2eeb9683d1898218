"""The sign of life that a trainer gives, whatever it is at."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch.distributed as dist
from torch.distributed import TCPStore

from tests.trainer.rewards.scores import recipe_of
from tests.trainer.waiting import wait_until
from trainer import host as pulse
from trainer.parallel import world
from trainer.parallel.world import Member, Watchdog, World
from trainer.rewards import workers
from trainer.rewards.rule import Sample


@pytest.fixture
def store(monkeypatch) -> TCPStore:
    monkeypatch.setattr(world, "_LOOK_SECONDS", 0.01)
    return TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)


@pytest.fixture
def sign(tmp_path, monkeypatch) -> Iterator[Path]:
    monkeypatch.setattr(pulse, "_pulse", pulse._Pulse())
    monkeypatch.setattr(pulse, "_EVERY_SECONDS", 0.01)
    pulse.begin_heartbeat(tmp_path)
    return tmp_path / pulse.PULSE_FILE


def test_the_first_process_gives_the_signs_of_all(sign, store):
    before = sign.stat().st_mtime_ns
    members = [Member("here", os.getpid()), Member("there", 1)]

    with Watchdog(store, members, rank=0).watching(Mock()):
        assert sign.stat().st_mtime_ns == before
        store.add("ticks", 1)  # as the other one does
        wait_until(lambda: sign.stat().st_mtime_ns > before)


def test_another_process_passes_its_signs_on_and_none_while_it_waits(
    store, monkeypatch
):
    monkeypatch.setattr(pulse, "_pulse", pulse._Pulse())
    monkeypatch.setattr(pulse, "_EVERY_SECONDS", 0.01)
    looks = 0

    class CountedLooks(Watchdog):
        def _pass_on_ticks(self, store: Any) -> None:
            nonlocal looks
            super()._pass_on_ticks(store)
            looks += 1

    def gather(values: list[int], value: int, group: object) -> None:
        at = looks
        wait_until(lambda: looks > at + 20)
        values[:] = [value, 2]

    monkeypatch.setattr(dist, "all_gather_object", gather)
    members = [Member("there", 1), Member("here", os.getpid())]
    with CountedLooks(store.clone(), members, rank=1).watching(Mock()):
        pulse.tick()
        wait_until(lambda: store.add("ticks", 0) == 1)

        World(rank=1, size=2).gather(1)

    assert store.add("ticks", 0) == 1


def test_each_score_is_a_sign(monkeypatch):
    beats: list[float] = []
    monkeypatch.setattr(workers, "tick", lambda: beats.append(time.monotonic()))
    pool = workers.Workers(1)
    try:
        texts = [Sample("", text) for text in ("a", "b", "c")]
        pool.submit(recipe_of("length").rules, texts, name="row 0").result()
    finally:
        pool.close()

    assert len(beats) == len(texts)
