"""vLLM in a process of its own: it samples the policy that it was sent."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trainer.grpo
from tests.trainer.rollout.test_one_step_off import (
    OFTEN,
    gaps,
    metrics_of,
    policy_after,
    run,
    tree_of,
)
from tests.trainer.run.test_runs_of_episodes import GUESS
from tests.trainer.run.test_runs_of_episodes import tree_of as guess_tree
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    start_trainer,
    write_config,
)
from tests.trainer.vllm_models import (
    CLOSE,
    cpu_policy,
    ids_of,
    largest_gap,
    requests_of,
    stir,
    write_wide_model,
)
from tests.trainer.waiting import wait_until
from trainer.model.loading import model_fingerprint
from trainer.model.policy import Policy
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.engine import SamplingParams
from trainer.rollout.episodes import EngineSource
from trainer.rollout.server_engine import RolloutClient, VllmServerEngine
from trainer.run.outcome import StepOutcome
from trainer.serving.client import read_token

pytestmark = pytest.mark.vllm

GREEDY = SamplingParams(max_new_tokens=20, temperature=0.0)
WARM = SamplingParams(max_new_tokens=30, temperature=0.7)


class Server:
    """A real server process on loopback."""

    def __init__(self, model: Path, token_file: Path, *, port: int = 0) -> None:
        self.token_file = token_file
        self.process = start_trainer(
            *("rollout-server", "--model", model, "--token-file", token_file),
            *("--port", port, "--cache-gib", 0.125, "--lora-rank", 8),
            *("--max-length", 256, "--max-rows", 64, "--dtype", "float32"),
        )
        assert self.process.stdout is not None
        values = []
        for line in self.process.stdout:
            values.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                return
        raise AssertionError("".join(values))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def end(self) -> str:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.communicate(timeout=60)[0]


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory) -> Path:
    return write_wide_model(tmp_path_factory.mktemp("wide") / "model")


@pytest.fixture(scope="module")
def token_file(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("token") / "token"


@pytest.fixture(scope="module")
def server(wide_folder, token_file) -> Iterator[Server]:
    server = Server(wide_folder, token_file)
    yield server
    server.end()


@pytest.fixture(scope="module")
def other(wide_folder, token_file, server) -> Iterator[Server]:
    other = Server(wide_folder, token_file)
    yield other
    other.end()


def engine_of(policy: Policy, folder: Path, *servers: Server) -> VllmServerEngine:
    token = read_token(servers[0].token_file)
    fingerprint = model_fingerprint(str(folder))
    clients = [
        RolloutClient(server.url, token=token, fingerprint=fingerprint)
        for server in servers
    ]
    return VllmServerEngine(policy, clients)


@pytest.mark.parametrize("lora_rank", [0, 5])
def test_it_samples_the_policy_of_now(wide_folder, server, lora_rank):
    policy = cpu_policy(wide_folder, lora_rank=lora_rank)
    engine = engine_of(policy, wide_folder, server)
    requests = requests_of(policy, 4)
    old = engine.sample(requests, WARM)
    stir(policy)
    assert engine.sample(requests, WARM) == old
    assert largest_gap(policy, requests, old, temperature=0.7) > 0.1

    engine.sync_weights()

    groups = engine.sample(requests, WARM)
    assert largest_gap(policy, requests, groups, temperature=0.7) < CLOSE
    own = TransformersEngine(policy, max_batch_rows=64)
    assert ids_of(engine.sample(requests, GREEDY)) == ids_of(
        own.sample(requests, GREEDY)
    )
    assert engine._servers[0].swaps is (lora_rank > 0)
    engine.close()


def test_two_servers_sample_what_one_does(wide_folder, server, other):
    policy = cpu_policy(wide_folder)
    requests = requests_of(policy, 2)
    one = engine_of(policy, wide_folder, other)
    alone = one.sample(requests, GREEDY)
    one.close()
    both = engine_of(policy, wide_folder, server, other)
    assert ids_of(both.sample(requests, GREEDY)) == ids_of(alone)
    stir(policy)

    both.sync_weights()

    groups = both.sample(requests, WARM)
    assert largest_gap(policy, requests, groups, temperature=0.7) < CLOSE
    own = TransformersEngine(policy, max_batch_rows=64)
    assert ids_of(both.sample(requests, GREEDY)) == ids_of(own.sample(requests, GREEDY))
    both.close()


@pytest.fixture
def outcomes(monkeypatch) -> list[StepOutcome]:
    """What each step did.

    The batches of odd steps are asked for when the step before has made all its
    updates, so that weights sent too early are met; those of even steps beside them.
    """
    seen: list[StepOutcome] = []
    train_on, complete = trainer.grpo.train_on, EngineSource.complete

    def train(*given: Any, **named: Any) -> StepOutcome:
        seen.append(train_on(*given, **named))
        return seen[-1]

    def sample(self: EngineSource, prompts: Any, step: int, **named: Any) -> Any:
        if step % 2:
            wait_until(lambda: len(seen) == step - 1)
        return complete(self, prompts, step, **named)

    monkeypatch.setattr(trainer.grpo, "train_on", train)
    monkeypatch.setattr(EngineSource, "complete", sample)
    return seen


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_a_batch_sampled_ahead_is_of_the_weights_before_the_last_update(
    tmp_path, wide_folder, rows_path, server, other, outcomes, lora_rank
):
    tree = tree_of(
        wide_folder,
        rows_path,
        model={"lora_rank": lora_rank, "device": "cpu", "dtype": "float32"},
        rollout={
            "one_step_off": True,
            "engine": "vllm_server",
            "url": f"{server.url},{other.url}",
            "token_file": str(server.token_file),
        },
        optim={"num_steps": 5, "learning_rate": 2e-3} | OFTEN,
        checkpoint={"every_steps": 1},
    )

    code, events = run(tmp_path, tree)

    assert code == 0, events[-1]
    for step, outcome in enumerate(outcomes, start=1):
        sampler = policy_after(tmp_path, max(step - 2, 0), wide_folder)
        trained = policy_after(tmp_path, step - 1, wide_folder)
        assert gaps(outcome, sampler)[0] < CLOSE
        assert gaps(outcome, trained)[1] < CLOSE
        if step > 1:
            assert gaps(outcome, trained)[0] > 500 * CLOSE
    first, *others = metrics_of(events)
    # 4 updates a step: 0 to 3 lie between sampling and use, and one step off 4 more
    assert [step["staleness/mean"] for step in (first, *others)] == [1.5] + [5.5] * 4
    assert first["mismatch/max"] < CLOSE
    assert all(step["staleness/kl"] > 1e-5 for step in others)


def test_a_run_continues_when_one_of_its_servers_is_killed_and_started_again(
    tmp_path, wide_folder, rows_path, server, other
):
    tree = config_tree(
        wide_folder,
        rows_path,
        model={"device": "cpu", "dtype": "float32"},
        rollout={
            "engine": "vllm_server",
            "url": f"{server.url},{other.url}",
            "token_file": str(other.token_file),
        },
        optim={"num_steps": 30},
        evaluation={"every_steps": 0},
    )
    out = tmp_path / "out"
    run = start_trainer("run", write_config(tmp_path, tree), "--out", out)
    log = out / "events.jsonl"
    try:
        wait_until(lambda: log.exists() and '"type":"step_finished"' in log.read_text())
        os.kill(other.process.pid, signal.SIGKILL)
        other.process.communicate()
        again = Server(wide_folder, other.token_file, port=other.port)
        message, _ = run.communicate(timeout=120)
    finally:
        run.kill()
        run.communicate()
        end = again.end()

    assert run.returncode == 0, message
    assert f"server at {other.url}" in message
    assert end.endswith("stopped\n")
    steps = only(read_events(log), "step_finished")
    assert len(steps) == 30
    assert max(step["metrics"]["mismatch/mean"] for step in steps) < CLOSE


def test_a_run_of_episodes_samples_from_a_server(tmp_path, token_file):
    server = Server(GUESS / "model", token_file)
    tree = guess_tree(
        rollout={
            "engine": "vllm_server",
            "url": server.url,
            "token_file": str(token_file),
        },
        model={"dtype": "float32"},
    )

    code, events = run(tmp_path, tree)

    server.end()
    assert code == 0, events[-1]
    steps = [event["metrics"] for event in only(events, "step_finished")]
    assert [metrics["episode/num_turns"] > 2 for metrics in steps] == [True] * 4
    assert max(metrics["mismatch/mean"] for metrics in steps) < CLOSE
