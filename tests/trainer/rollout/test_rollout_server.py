"""A rollout server over HTTP: who may hold it, what it takes, what it samples from."""

import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from tests.trainer.rollout.test_rollout_wire import question_of
from tests.trainer.rollout_servers import (
    WARM,
    Served,
    engine_of,
    sampled_total,
    total_of,
)
from tests.trainer.tiny import config_tree, run_trainer
from tests.trainer.vllm_models import cpu_policy, requests_of, stir
from tests.trainer.waiting import wait_until
from trainer.config import RunConfig
from trainer.rollout.select import make_engine
from trainer.rollout.server import NotLeased
from trainer.rollout.server_engine import VllmServerEngine
from trainer.rollout.wire import Order, pack_question, pack_weights
from trainer.serving.client import read_or_make_token, unpack


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.end()


@pytest.fixture
def engine(policy, served) -> Iterator[VllmServerEngine]:
    engine = engine_of(policy, served.url)
    yield engine
    engine.close()


def test_a_completion_comes_back_as_it_was_sampled(policy, engine):
    requests = requests_of(policy, 3)

    groups = engine.sample(requests, WARM)

    assert [len(group) for group in groups] == [3] * len(requests)
    for request, group in zip(requests, groups, strict=True):
        for seed, completion in zip(request.seeds, group, strict=True):
            token = 2 + seed % 2**63 % 7
            assert completion.token_ids == (*[token] * 4, policy.eos_ids[0])
            assert completion.end_reason == "stop"
            assert completion.text == policy.tokenizer.decode([token]) * 4


def test_it_samples_from_what_it_was_sent_last(policy, engine):
    before = total_of(policy)
    assert sampled_total(policy, engine) == pytest.approx(before)
    stir(policy)
    assert sampled_total(policy, engine) == pytest.approx(before)

    engine.sync_weights()

    assert sampled_total(policy, engine) == pytest.approx(total_of(policy))
    assert total_of(policy) != pytest.approx(before)


def test_adapters_are_sent_by_themselves_where_there_is_a_place(model_folder, served):
    policy = cpu_policy(model_folder, lora_rank=3, lora_alpha=6)
    served.sampler.lora_rank = 4
    engine = engine_of(policy, served.url)

    stir(policy)
    engine.sync_weights()

    assert served.sampler.loaded == ["weights", "adapters 3 6", "adapters 3 6"]
    adapters = policy.adapter_weights()
    assert adapters is not None
    expected = sum(w.double().sum().item() for _, w in policy.base_weights())
    expected += sum(t.double().sum().item() for _, t in adapters.tensors)
    assert sampled_total(policy, engine) == pytest.approx(expected)
    engine.close()


def test_adapters_without_a_place_are_sent_merged(model_folder, served):
    policy = cpu_policy(model_folder, lora_rank=3)
    engine = engine_of(policy, served.url)
    stir(policy)

    engine.sync_weights()

    assert served.sampler.loaded == ["weights", "weights"]
    assert sampled_total(policy, engine) == pytest.approx(total_of(policy))
    engine.close()


def test_large_weights_come_in_parts(policy, served, monkeypatch):
    monkeypatch.setattr("trainer.rollout.wire._PART_BYTES", 10_000)
    parts = list(pack_weights(policy.weights()))
    names = [name for part in parts for name in unpack(part)]
    assert len(parts) > 3
    assert sorted(names) == sorted(name for name, _ in policy.weights())

    engine = engine_of(policy, served.url)

    assert sampled_total(policy, engine) == pytest.approx(total_of(policy))
    engine.close()


def test_a_second_run_is_refused_until_the_first_has_ended(policy, served):
    first = engine_of(policy, served.url)

    with pytest.raises(ValueError, match="another run"):
        engine_of(policy, served.url)

    for _ in range(20):
        first.close()  # which waits until the server has let go
        first = engine_of(policy, served.url)
    first.close()
    engine_of(policy, served.url).close()


def test_a_run_that_begins_does_not_get_the_last_ones_weights(policy, served):
    engine_of(policy, served.url).close()
    wait_until(lambda: served.server.holding._holder is None)
    held = engine_of(policy, served.url)
    word, version = held._servers[0]._word, served.server.holding.version
    held.close()
    wait_until(lambda: served.server.holding._holder is None)

    other = served.server.holding.take(None, word=None)  # no one is behind it

    assert other is not None
    question = pack_question(question_of(version=version or 0))
    assert served.ask("/sample", question, word=word)[0] == 423
    assert served.ask("/sample", question, word=other)[0] == 409
    served.server.holding.release(other)


def test_a_server_that_was_started_again_is_sent_the_weights(policy, capsys):
    served = Served()
    engine = engine_of(policy, served.url)
    served.end()
    stir(policy)
    again = Served(port=served.port)

    assert sampled_total(policy, engine) == pytest.approx(total_of(policy))

    assert again.sampler.loaded == ["weights"]
    engine.close()
    again.end()


def test_an_unreachable_server_is_retried_and_then_named(policy, capsys):
    served = Served()
    engine = engine_of(policy, served.url, patience_seconds=1.0)
    served.end()

    with pytest.raises(ValueError, match=r" \d+ s"):
        engine.sample(requests_of(policy, 1), WARM)

    assert "waiting for" in capsys.readouterr().out
    engine.close()


def test_an_engine_that_failed_is_not_called_again(policy, served, engine):
    served.sampler.fails = True
    with pytest.raises(ValueError, match="RuntimeError: the engine"):
        engine.sample(requests_of(policy, 1), WARM)
    served.sampler.fails = False

    with pytest.raises(ValueError, match="Restart it"):
        engine.sample(requests_of(policy, 1), WARM)


def test_another_model_is_refused(policy, served):
    with pytest.raises(ValueError, match="another model"):
        engine_of(policy, served.url, fingerprint="another")


def test_another_token_is_refused(policy, served):
    with pytest.raises(ValueError, match=r"rollout\.token_file"):
        engine_of(policy, served.url, token="f" * 16)


def test_a_run_asks_the_server_that_its_configuration_names(
    tmp_path, model_folder, policy, served
):
    read_or_make_token(tmp_path / "token")
    rollout = {
        "engine": "vllm_server",
        "url": served.url,
        "token_file": str(tmp_path / "token"),
    }
    tree = config_tree(model_folder, Path("rows.jsonl"), rollout=rollout)

    with pytest.raises(ValueError, match="token"):
        make_engine(RunConfig.model_validate(tree), policy)


def test_an_address_out_of_the_private_network_is_refused(policy):
    with pytest.raises(ValueError, match=r"rollout\.url http://8\.8\.8\.8"):
        engine_of(policy, "http://8.8.8.8")


@pytest.mark.parametrize("path", ["/hold", "/weights", "/load", "/sample", "/places"])
def test_every_path_requires_the_token(served, path):
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    connection.request("POST", path, body=b"", headers={"Authorization": "Bearer x"})

    assert connection.getresponse().status == 401
    connection.close()


@pytest.mark.parametrize("path", ["/weights", "/load", "/sample", "/places"])
def test_only_the_run_with_the_lease_is_answered(served, engine, path):
    for word in ("", "another"):
        assert served.ask(path, b"{}", word=word)[0] == 423


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/weights", b"{}", "safetensors file"),
        ("/weights", save({"w": torch.zeros(2**18 - 99)}), "more than the"),
        ("/load", b"{}", "Order: names: Field required"),
        ("/load", b"no json", "Order: all: Invalid JSON"),
        ("/load", b'{"names": ["w"], "rank": "all", "alpha": 1}', "Order: rank"),
        ("/load", b'{"names": ["w"], "rank": -1, "alpha": 1}', "Order: rank"),
        ("/sample", b"", "safetensors file"),
        ("/places", b"[", "Adapted: all: Invalid JSON"),
        ("/places", b'{"layers": 3, "rank": 1}', "Adapted: layers"),
    ],
)
def test_an_invalid_request_is_refused_with_a_reason(policy, path, body, words):
    served = Served(limit=2**19)
    engine = engine_of(policy, served.url)
    try:
        status, reply = served.ask(path, body, word=engine._servers[0]._word)

        assert status == 400
        assert words in json.loads(reply)["error"]
        assert sampled_total(policy, engine) == pytest.approx(total_of(policy))
    finally:
        engine.close()
        served.end()


def test_adapters_of_too_high_a_rank_are_sent_merged(model_folder, served):
    policy = cpu_policy(model_folder, lora_rank=3)
    served.sampler.lora_rank = 2

    engine = engine_of(policy, served.url)

    assert served.sampler.loaded == ["weights"]
    engine.close()


def test_a_load_that_is_requested_again_has_the_weights_sent_again(
    policy, served, engine
):
    """As when the answer to the first was lost on the way."""
    (client,) = engine._servers
    inner = client.load

    def twice(*args: Any, **options: Any) -> None:
        del client.load
        inner(*args, **options)
        inner(*args, **options)

    client.load = twice
    stir(policy)

    engine.sync_weights()

    assert sampled_total(policy, engine) == pytest.approx(total_of(policy))


def test_a_load_that_waits_for_its_turn_leaves_the_next_runs_weights(served):
    server, busy = served.server, threading.Event()
    first = server.holding.take(None, word=None)
    server.holding.add_weights(first, {"w": torch.ones(2)})
    server._turns.submit(busy.wait)
    order = Order(names=("w",), rank=0, alpha=0.0)
    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(server.load, first, order)
        wait_until(lambda: not server.holding._parts)
        server.holding.release(first)
        second = server.holding.take(None, word=None)
        busy.set()

        with pytest.raises(NotLeased):
            late.result()

    assert served.sampler.loaded == []
    server.holding.add_weights(second, {"w": torch.ones(2)})
    assert server.load(second, order) == server.holding.version
    server.holding.release(second)


def test_a_request_without_a_lease_is_refused_unread(served):
    read = []
    served.server.holding.add_weights = lambda *args: read.append(args)

    assert served.ask("/weights", b"x" * 2**19)[0] == 423

    assert read == []


def test_a_server_that_ends_ends_its_engine(policy):
    served = Served()
    engine = engine_of(policy, served.url)

    served.end()

    assert served.sampler.is_closed
    assert served.server.holding.take(None, word=None) is None
    engine.close()


def test_a_server_does_not_listen_to_the_world(tmp_path):
    done = run_trainer(
        *("rollout-server", "--model", tmp_path, "--token-file", tmp_path / "token"),
        *("--host", "0.0.0.0"),  # noqa: S104 - that is what is refused
    )

    assert done.returncode == 2
    assert "0.0.0.0" in done.stderr  # noqa: S104
