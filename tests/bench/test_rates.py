"""Measuring the machine, quickly and on a CPU."""

from __future__ import annotations

import time

import pytest
import torch

from tests.bench import rates
from tests.bench.rates import MachineRates, measure_rates, read_rate
from tests.bench.test_limits import SIZES


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_ROUND_SECONDS", 0.002)


def test_all_rates_of_a_machine_are_measured() -> None:
    found = measure_rates(
        SIZES,
        device="cpu",
        dtype="float32",
        rows=4,
        micro_batch_tokens=16,
        position_bytes=4_096,
        size=64,
        memory_bytes=2**22,
    )

    assert min(found.matrix, found.training, found.decoding) > 1e6
    assert min(found.read, found.reading) > 1e6


def test_a_reading_rate_is_that_of_a_plain_loop() -> None:
    values = torch.ones(2**22)
    begin = time.perf_counter()
    for _ in range(20):
        values.sum()
    plain = 20 * 4 * 2**22 / (time.perf_counter() - begin)

    assert read_rate(4 * 2**22, device="cpu") > plain / 4


def test_what_a_cache_gives_faster_than_memory_counts_as_the_limit() -> None:
    found = MachineRates(matrix=8.0, read=2.0, training=6.0, decoding=1.0, reading=5.0)

    assert (found.limit.matrix, found.limit.read) == (8.0, 5.0)
    assert (found.in_training.matrix, found.in_decoding.matrix) == (6.0, 1.0)


def test_the_products_of_training_are_the_models_own() -> None:
    products = list(rates._products(SIZES, tokens=10))

    assert sum(p.times * p.flops for p in products) == 2 * 10 * (1_152 + 800)
    # 8 × 8 queries and output, 8 × 4 keys and values, 8 × 16 twice, 16 × 8, the head
    assert [p.times for p in products] == [4, 4, 4, 2, 1]


def test_a_large_vocabulary_is_multiplied_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rates, "_MAX_LOGITS", 400)

    *_, head = rates._products(SIZES, tokens=10)

    assert (head.rows, head.times) == (4, 2.5)
