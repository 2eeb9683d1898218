"""What is sampled from while the policy is trained."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.trainer.rollout_servers import (
    WARM,
    Served,
    engine_of,
    sampled_total,
    total_of,
)
from tests.trainer.tiny import config_tree
from tests.trainer.vllm_models import (
    CLOSE,
    cpu_policy,
    ids_of,
    largest_gap,
    requests_of,
    stir,
)
from trainer.config import RunConfig
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.prefetch import Snapshot, SnapshotEngine
from trainer.rollout.select import make_engine
from trainer.rollout.server_engine import VllmServerEngine


@pytest.fixture
def engine(policy) -> SnapshotEngine:
    return SnapshotEngine(policy, max_batch_rows=64)


def test_it_samples_what_the_policy_was_when_last_synchronised(policy, engine):
    requests = requests_of(policy, 2)
    before = engine.sample(requests, WARM)
    assert largest_gap(policy, requests, before, temperature=0.7) < CLOSE

    stir(policy)

    assert ids_of(engine.sample(requests, WARM)) == ids_of(before)
    engine.sync_weights()
    after = engine.sample(requests, WARM)
    assert largest_gap(policy, requests, after, temperature=0.7) < CLOSE
    assert largest_gap(policy, requests, before, temperature=0.7) > 100 * CLOSE


def test_adapters_are_copied_and_what_is_under_them_is_shared(model_folder):
    policy = cpu_policy(model_folder, lora_rank=4)
    stir(policy)
    snapshot = Snapshot(policy)
    own = dict(policy.model.named_parameters())
    kept = dict(snapshot.policy.model.named_parameters())

    assert {name for name in own if own[name] is not kept[name]} == {
        name for name in own if ".lora_" in name
    }
    stir(policy, seed=2)
    assert not any(torch.equal(own[n], kept[n]) for n in own if ".lora_" in n)
    snapshot.take()
    assert all(torch.equal(own[name], kept[name]) for name in own)


def test_a_snapshots_adapters_stay_on_while_the_policys_are_off(model_folder):
    """As they are while the model under them is the reference."""
    policy = cpu_policy(model_folder, lora_rank=4)
    stir(policy)
    engine = SnapshotEngine(policy, max_batch_rows=64)
    requests = requests_of(policy, 2)
    expected = TransformersEngine(policy, max_batch_rows=64).sample(requests, WARM)

    with policy.adapters_off():
        sampled = engine.sample(requests, WARM)

    assert ids_of(sampled) == ids_of(expected)


@pytest.fixture
def sent(policy) -> Iterator[tuple[VllmServerEngine, Served]]:
    served = Served()
    snapshot = Snapshot(policy)
    engine = engine_of(snapshot.policy, served.url, before_sync=snapshot.take)
    yield engine, served
    engine.close()


def test_a_server_that_was_started_again_is_sent_what_it_sampled_with(
    policy, sent, capsys
):
    engine, served = sent
    synchronised = total_of(policy)
    served.end()
    stir(policy)  # an update that is under way
    again = Served(port=served.port)

    assert sampled_total(policy, engine) == pytest.approx(synchronised)

    engine.sync_weights()
    assert sampled_total(policy, engine) == pytest.approx(total_of(policy))
    assert total_of(policy) != pytest.approx(synchronised)
    engine.close()
    again.end()


@pytest.mark.parametrize(
    ("source", "kind"), [("policy", SnapshotEngine), ("start", TransformersEngine)]
)
def test_weights_are_copied_only_where_they_move_meanwhile(source, kind, policy):
    tree = config_tree(
        Path("model"),
        Path("rows.jsonl"),
        rollout={"one_step_off": True, "source": source},
        loss={"importance_correction": "token_mask"},
    )

    assert type(make_engine(RunConfig.model_validate(tree), policy)) is kind


def test_a_single_phase_that_samples_ahead_needs_a_copy(policy):
    tree = config_tree(
        Path("model"), Path("rows.jsonl"), loss={"importance_correction": "token_mask"}
    )
    changes = {"rollout": {"one_step_off": True}}
    tree["phases"] = [
        {"name": "one", "num_steps": 3},
        {"name": "two", "num_steps": 3, "changes": changes},
    ]

    assert isinstance(
        make_engine(RunConfig.model_validate(tree), policy), SnapshotEngine
    )
