"""Several processes sample from one rollout server, and are sampled for as one is."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.trainer import faults
from tests.trainer.parallel.test_distributed import (
    assert_same_story,
    together,
    tree_of,
)
from tests.trainer.rollout_servers import (
    TOKEN,
    WARM,
    Sampling,
    Served,
    engine_of,
    total_of,
)
from tests.trainer.several import run_two
from tests.trainer.tiny import only, read_events, write_config
from tests.trainer.vllm_models import requests_of
from tests.trainer.waiting import wait_until
from trainer.config import RunConfig
from trainer.model.loading import model_fingerprint
from trainer.model.policy import Policy
from trainer.parallel.fsdp import ShardedPolicy
from trainer.parallel.world import ALONE, World
from trainer.rollout.engine import Sampled
from trainer.rollout.server_engine import SharedEngine
from trainer.run.setup import _spread


class Noting(Sampling):
    """Notes how much it is asked for at once."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.sizes: list[int] = []
        self.seconds = 0.0  # that it takes

    def sample(self, prompts: Any, params: Any, **options: Any) -> list[Sampled]:
        self.sizes.append(len(prompts))
        time.sleep(self.seconds)
        return super().sample(prompts, params, **options)


@pytest.fixture
def sampler(policy) -> Noting:
    return Noting(policy)


@pytest.fixture
def served(model_folder, sampler) -> Iterator[Served]:
    served = Served(sampler=sampler, fingerprint=model_fingerprint(str(model_folder)))
    yield served
    served.end()


@pytest.fixture
def tree(model_folder, rows_path, tmp_path, served) -> dict[str, Any]:
    (tmp_path / "token").write_text(TOKEN)
    return tree_of(
        model_folder,
        rows_path,
        rollout={
            "engine": "vllm_server",
            "url": served.url,
            "token_file": str(tmp_path / "token"),
            "prompts_per_step": 3,
        },
    )


@pytest.mark.slow
def test_three_processes_are_sampled_for_as_one_is(tree, tmp_path, sampler):
    tree["data"]["num_eval_rows"] = 2  # so that one of them asks for nothing
    config = write_config(tmp_path, tree)

    one = together(config, "one", count=1)  # which lets go of the server at its end
    expected, sampler.sizes = sampler.sizes, []
    three = together(config, "three", count=3)

    assert_same_story(three, one)
    assert sampler.sizes == expected, "it was not asked for all at once"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["off", "refill"])
def test_two_processes_are_sampled_for_ahead_as_one_is(mode, tree, tmp_path, sampler):
    """What is asked of the server does not cross with what training asks."""
    sampler.seconds = 0.05
    tree["rollout"] |= {
        "one_step_off": True,
        "dynamic_sampling": mode,
        "max_refills": 2,
    }
    tree["loss"] = {"importance_correction": "token_truncate"}
    tree["optim"] |= {"minibatches": 2, "learning_rate": 1e-5}
    # most groups have both kinds, so that a step that is refilled is a whole one
    rule = {"name": "short", "kind": "length", "params": {"maximum": 10}}
    tree["reward"] = {"recipe": {"rules": [rule]}}
    config = write_config(tmp_path, tree)

    one = together(config, "one", count=1)
    expected, sampler.sizes = sampler.sizes, []
    two = together(config, "two")

    assert_same_story(two, one)
    assert sampler.sizes == expected
    steps = only(read_events(two / "events.jsonl"), "step_finished")
    rounds = {step["metrics"]["sampling/num_rounds"] for step in steps}
    assert (rounds == {1.0}) == (mode == "off")
    assert [step["metrics"]["staleness/mean"] for step in steps] == [0.5] + [2.5] * 5
    assert sum(step["metrics"]["grad_norm"] > 0 for step in steps) >= 4


@pytest.fixture
def spread(policy) -> Iterator[ShardedPolicy]:
    """Over one process alone."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield ShardedPolicy(policy, ALONE)
    dist.destroy_process_group()


def test_a_server_that_was_started_again_is_sent_what_it_sampled_with(spread, capsys):
    served = Served()
    engine = SharedEngine(
        spread, ALONE, connect=lambda whole: engine_of(whole, served.url)
    )
    requests, before = requests_of(spread, 2), total_of(spread.whole)
    served.end()
    with torch.no_grad():  # an update that is under way
        for weight in spread.model.parameters():
            weight.mul_(2)
    again = Served(port=served.port)

    for expected in (before, 2 * before):
        groups = engine.sample(requests, WARM)

        (reported,) = {value for group in groups for c in group for value in c.logprobs}
        assert reported == pytest.approx(expected)
        engine.sync_weights()
    engine.close()
    wait_until(lambda: again.server.holding._holder is None)
    again.end()


@pytest.fixture
def first() -> Iterator[World]:
    """The first process of two; what it sends to the other arrives nowhere."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield World(rank=0, size=2, _second=dist.group.WORLD)
    dist.destroy_process_group()


def test_the_copy_that_a_process_has_anyway_is_the_one_that_is_sent(
    tree, policy, first, sampler
):
    """It stands still while the parts are trained: no other is made for that."""
    tree["rollout"] |= {"one_step_off": True}
    tree["loss"] = {"importance_correction": "token_truncate"}

    sharded, engine = _spread(
        policy,
        first,
        RunConfig.model_validate(tree),
        on_slowed=lambda _slowed: None,
        at_rest=threading.Event(),
        num_shards=1,
        began_with=None,
    )

    assert isinstance(engine, SharedEngine)
    assert engine._engine._policy is sharded.whole
    sampler.off = 0.5
    with pytest.raises(ValueError, match=r"0\.5 nats"):
        engine._engine.sample(requests_of(policy, 1), WARM)
    engine.close()


@pytest.mark.slow
def test_a_process_that_would_sample_itself_is_not_waited_for(tree, tmp_path):
    config = write_config(tmp_path, tree)

    codes, output = run_two(
        config, before=faults.it_has_another_engine, patience_seconds=60
    )

    assert codes == [1, 1], output
    (failed,) = read_events(tmp_path / "two" / "events.jsonl")
    assert "Process 1 of 2" in failed["error"]


@pytest.mark.slow
def test_a_refusal_by_the_server_ends_all_processes(tree, tmp_path):
    (tmp_path / "token").write_text("f" * 16)
    config = write_config(tmp_path, tree)

    codes, output = run_two(config)

    assert codes == [1, 1], output
    (failed,) = read_events(tmp_path / "two" / "events.jsonl")
    assert "token" in failed["error"]
