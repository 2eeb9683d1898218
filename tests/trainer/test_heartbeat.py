"""The sign of life that a trainer gives, whatever it is at."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.trainer.rewards.scores import recipe_of
from tests.trainer.waiting import wait_until
from trainer import host as pulse
from trainer.parallel.world import World
from trainer.rewards import workers
from trainer.rewards.rule import Sample


@pytest.fixture
def sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(pulse, "_pulse", pulse._Pulse())
    monkeypatch.setattr(pulse, "_EVERY_SECONDS", 0.01)
    pulse.begin_heartbeat(tmp_path)
    return tmp_path / pulse.PULSE_FILE


def test_others_are_waited_for_alive(
    sign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as a collective may take, which has a limit of its own."""
    before = sign.stat().st_mtime_ns

    def gather(values: list[int], value: int, group: object) -> None:
        wait_until(lambda: sign.stat().st_mtime_ns > before)
        values[:] = [value, 2]

    monkeypatch.setattr(dist, "all_gather_object", gather)

    assert World(rank=0, size=2).gather(1) == [1, 2]


def test_each_score_is_a_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[float] = []
    monkeypatch.setattr(workers, "tick", lambda: beats.append(time.monotonic()))
    pool = workers.Workers(1)
    try:
        texts = [Sample("", text) for text in ("a", "b", "c")]
        pool.submit(recipe_of("length").rules, texts, name="row 0").result()
    finally:
        pool.close()

    assert len(beats) == len(texts)
