"""Several rollout servers share out the prompts, and all have the same weights."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.rollout_servers import (
    WARM,
    Sampling,
    Served,
    engine_of,
    sampled_total,
    total_of,
)
from tests.trainer.tiny import config_tree
from tests.trainer.vllm_models import cpu_policy, ids_of, requests_of, stir
from tests.trainer.waiting import wait_until
from trainer.config import RunConfig
from trainer.rollout.engine import Sampled, Slowed
from trainer.rollout.select import FallbackEngine, make_engine
from trainer.serving.client import read_or_make_token


@pytest.fixture
def two() -> Iterator[tuple[Served, Served]]:
    servers = (Served(), Served())
    yield servers
    for served in servers:
        served.end()


def keep_asked(served: Served) -> list[list[int]]:
    """The seeds of each question to a server, from now on."""
    inner, asked = served.sampler.sample, []

    def keeping(prompts: Any, *args: Any, **options: Any) -> list[Sampled]:
        asked.append([prompt.seed for prompt in prompts])
        return inner(prompts, *args, **options)

    served.sampler.sample = keeping
    return asked


def test_completions_are_those_of_one_server_in_the_order_of_the_requests(policy, two):
    requests = requests_of(policy, 3)
    alone = engine_of(policy, two[0].url)
    expected = alone.sample(requests, WARM)
    alone.close()
    wait_until(lambda: two[0].server.holding._holder is None)
    engine = engine_of(policy, two[0].url, two[1].url)

    for count in (5, 2, 1):
        assert engine.sample(requests[:count], WARM) == expected[:count]
    assert len({ids for group in ids_of(expected) for ids in group}) > 3
    engine.close()


def test_a_group_stays_whole_on_one_server(policy, two):
    requests = requests_of(policy, 3)
    engine = engine_of(policy, two[0].url, two[1].url)
    asked = [keep_asked(served) for served in two]

    engine.sample(requests, WARM)

    seeds = [[seed % 2**63 for seed in request.seeds] for request in requests]
    assert asked == [[[*seeds[0], *seeds[2], *seeds[4]]], [[*seeds[1], *seeds[3]]]]
    engine.close()


def test_servers_sample_at_the_same_time(policy, two):
    engine = engine_of(policy, two[0].url, two[1].url)
    both = threading.Barrier(2, timeout=30)
    for served in two:
        inner = served.sampler.sample

        def meeting(*args: Any, inner: Any = inner, **options: Any) -> list[Sampled]:
            both.wait()
            return inner(*args, **options)

        served.sampler.sample = meeting

    engine.sample(requests_of(policy, 1), WARM)

    assert not both.broken
    engine.close()


def test_all_get_the_weights_of_an_update_which_are_packed_once(
    policy, two, monkeypatch
):
    monkeypatch.setattr("trainer.rollout.wire._PART_BYTES", 10_000)
    engine = engine_of(policy, two[0].url, two[1].url)
    stir(policy)
    read = 0
    weights = policy.weights

    def counting() -> Any:
        nonlocal read
        for name, weight in weights():
            read += 1
            yield name, weight

    policy.weights = counting

    engine.sync_weights()

    assert read == len(list(weights()))
    assert sampled_total(policy, engine) == pytest.approx(total_of(policy))
    assert two[0].sampler.total == two[1].sampler.total
    assert [served.sampler.loaded for served in two] == [["weights"] * 2] * 2
    engine.close()


def test_servers_get_adapters_or_whole_weights(model_folder, two):
    policy = cpu_policy(model_folder, lora_rank=3, lora_alpha=6)
    two[0].sampler.lora_rank = 4

    engine = engine_of(policy, two[0].url, two[1].url)
    stir(policy)
    engine.sync_weights()

    assert two[0].sampler.loaded == ["weights", "adapters 3 6", "adapters 3 6"]
    assert two[1].sampler.loaded == ["weights", "weights"]
    engine.close()


@pytest.mark.parametrize("moment", ["sampling", "updating"])
def test_only_a_restarted_server_is_sent_the_weights(policy, moment, capsys):
    lost, kept = Served(), Served()
    engine = engine_of(policy, lost.url, kept.url)
    stir(policy)
    if moment == "sampling":
        engine.sync_weights()
    loaded = len(kept.sampler.loaded)
    lost.end()
    again: list[Served] = []
    late = threading.Timer(0.5, lambda: again.append(Served(port=lost.port)))
    late.start()

    if moment == "updating":
        engine.sync_weights()
    total = sampled_total(policy, engine)

    assert total == pytest.approx(total_of(policy))
    assert again[0].sampler.loaded == ["weights"]
    assert len(kept.sampler.loaded) == loaded + (moment == "updating")
    assert f"server at {lost.url}" in capsys.readouterr().out
    engine.close()
    for served in (*again, kept):
        served.end()


def test_an_unreachable_server_ends_the_run_by_its_name(policy, capsys):
    lost, kept = Served(), Served()
    engine = engine_of(policy, lost.url, kept.url, patience_seconds=1.0)
    lost.end()

    with pytest.raises(ValueError, match=f"{lost.url} has been unreachable"):
        engine.sample(requests_of(policy, 1), WARM)

    engine.close()
    kept.end()


def test_a_refused_server_releases_the_others(policy, two):
    first = engine_of(policy, two[1].url)

    with pytest.raises(ValueError, match=f"{two[1].url} is used"):
        engine_of(policy, two[0].url, two[1].url)

    wait_until(lambda: two[0].server.holding._holder is None)
    first.close()


def test_a_server_that_keeps_forgetting_is_named(policy, two):
    engine = engine_of(policy, two[0].url, two[1].url)
    two[1].server.sample = lambda body: None

    with pytest.raises(ValueError, match=f"{two[1].url} .* 3 times"):
        engine.sample(requests_of(policy, 1), WARM)

    engine.close()


@pytest.mark.parametrize("is_later", [False, True])
def test_log_probs_that_are_off_are_warned_of(is_later, policy):
    served = Served(sampler=Sampling(policy))
    reported: list[Slowed] = []
    servers = engine_of(policy, served.url)
    engine = FallbackEngine(policy, servers, on_slowed=reported.append)
    requests = requests_of(policy, 1)
    if is_later:  # such as weights that a server loses, which new ones show
        engine.sample(requests, WARM)

    served.sampler.off = 0.01
    engine.sync_weights()
    engine.sample(requests, WARM)

    (slowed,) = reported
    assert slowed.code == "engine_fallback"
    assert "0.01 nats" in slowed.reason
    engine.close()
    served.end()


def test_a_server_that_is_far_off_is_refused(policy):
    served = Served(sampler=Sampling(policy))
    servers = engine_of(policy, served.url)
    engine = FallbackEngine(policy, servers, on_slowed=lambda _slowed: None)
    served.sampler.off = 0.5

    with pytest.raises(ValueError, match=r"0\.5 nats"):
        engine.sample(requests_of(policy, 1), WARM)

    engine.close()
    served.end()


def test_a_run_asks_the_servers_that_its_configuration_names(
    tmp_path, model_folder, policy, two, monkeypatch
):
    monkeypatch.setattr(
        "trainer.rollout.select.model_fingerprint", lambda *_, **__: "print"
    )
    token = read_or_make_token(tmp_path / "token")
    for served in two:
        served.server.authorization = f"Bearer {token}".encode()
    rollout = {
        "engine": "vllm_server",
        "url": f"{two[0].url}, {two[1].url}",
        "token_file": str(tmp_path / "token"),
    }
    tree = config_tree(model_folder, Path("rows.jsonl"), rollout=rollout)

    engine = make_engine(RunConfig.model_validate(tree), policy)

    assert not any(served.server.holding._holder is None for served in two)
    engine.close()
