"""vLLM in a child of this process: it samples the policy, after each update too."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.rollout.test_episodes import Scripted, config_of, user
from tests.trainer.rollout.test_rollout import prompts_of
from tests.trainer.vllm_models import (
    CLOSE,
    TEXTS,
    cpu_policy,
    engine_of,
    ids_of,
    largest_gap,
    requests_of,
    start_process,
    stir,
    write_wide_model,
)
from trainer.model.policy import Policy
from trainer.rollout import wire
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.engine import Request, SamplingParams
from trainer.rollout.episodes import EpisodePlayer
from trainer.rollout.server_engine import VllmServerEngine
from trainer.rollout.vllm import VllmProcess
from trainer.types import Rollout

# warnings are vLLM's own
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

GREEDY = SamplingParams(max_new_tokens=30, temperature=0.0)
WARM = SamplingParams(max_new_tokens=30, temperature=0.7)


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory) -> Path:
    return write_wide_model(tmp_path_factory.mktemp("wide") / "model")


@pytest.fixture(scope="module")
def process(wide_folder) -> Iterator[VllmProcess]:
    process = start_process(wide_folder, lora_rank=5)
    yield process
    process.close()


@pytest.fixture
def policy(wide_folder) -> Policy:
    return cpu_policy(wide_folder)


@pytest.fixture
def engine(policy, process) -> VllmServerEngine:
    return engine_of(policy, process)


def test_greedy_tokens_and_log_probs_are_those_of_the_transformers_engine(
    policy, engine
):
    requests = requests_of(policy, 1)

    found = engine.sample(requests, GREEDY)

    expected = TransformersEngine(policy, max_batch_rows=64).sample(requests, GREEDY)
    assert ids_of(found) == ids_of(expected)
    for (mine,), (theirs,) in zip(found, expected, strict=True):
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=CLOSE)
        assert (mine.text, mine.end_reason) == (theirs.text, theirs.end_reason)


def test_episodes_are_those_of_the_transformers_engine(policy, engine):
    """Turns have limits of their own, and later ones begin with all before them."""
    environment = Scripted(lambda _row, _seed, said: user("+" * len(said)))
    config = config_of(
        max_turns=4, max_turn_tokens=30, policy_tokens=60, max_tokens=120
    )
    prompts = prompts_of(policy)
    played = [
        EpisodePlayer(own, environment, config).play(
            prompts, [(1, 2)] * len(prompts), GREEDY
        )
        for own in (engine, TransformersEngine(policy, max_batch_rows=64))
    ]

    assert ids_of(played[0]) == ids_of(played[1])
    ends = [[episode.end_reason for episode in group] for group in played[0]]
    assert ends == [[episode.end_reason for episode in group] for group in played[1]]
    assert (
        max(len(episode.policy_turns) for group in played[0] for episode in group) > 1
    )


def test_a_stop_text_ends_the_same_token_as_in_the_transformers_engine(policy, engine):
    requests = requests_of(policy, 1)
    ((first,), *_) = engine.sample(requests, GREEDY)
    params = replace(GREEDY, stop=(first.text[4:7], "<eos>"))

    groups = engine.sample(requests, params)

    expected = TransformersEngine(policy, max_batch_rows=64).sample(requests, params)
    assert ids_of(groups) == ids_of(expected)
    assert groups[0][0].is_stopped_by_text
    assert groups[0][0].num_tokens < first.num_tokens


def test_log_probs_are_the_policys_at_the_sampling_temperature(policy, engine):
    requests = requests_of(policy, 8)

    groups = engine.sample(requests, WARM)

    assert largest_gap(policy, requests, groups, temperature=0.7) < CLOSE
    assert largest_gap(policy, requests, groups, temperature=1.0) > 0.1


def test_a_completion_follows_from_its_seed(policy, engine):
    requests = requests_of(policy, 6)

    together = ids_of(engine.sample(requests, WARM))

    assert ids_of(engine.sample(requests, WARM)) == together
    alone = Request(token_ids=requests[2].token_ids, seeds=requests[2].seeds[3:4])
    assert ids_of(engine.sample([alone], WARM)) == [[together[2][3]]]
    assert len({ids for group in together for ids in group}) > len(TEXTS)


def test_a_completion_ends_with_its_end_token(policy, engine):
    groups = engine.sample(requests_of(policy, 16), WARM)

    reasons = [c.end_reason for group in groups for c in group]
    assert {"stop", "length"} == set(reasons)
    for completion in (c for group in groups for c in group):
        stops = completion.token_ids[-1] in policy.eos_ids
        assert completion.end_reason == ("stop" if stops else "length")
        assert stops or completion.num_tokens == WARM.max_new_tokens
        assert not set(completion.token_ids[:-1]) & set(policy.eos_ids)
        assert "<eos>" not in completion.text


def test_after_an_update_the_new_policy_is_sampled(policy, engine):
    requests = requests_of(policy, 4)
    before = engine.sample(requests, WARM)

    for update in range(3):
        stir(policy, seed=update)
        engine.sync_weights()
        after = engine.sample(requests, WARM)

        assert largest_gap(policy, requests, after, temperature=0.7) < CLOSE
        assert ids_of(after) != ids_of(before)


def test_without_being_synchronised_the_old_policy_is_sampled(policy, engine):
    requests = requests_of(policy, 4)
    before = engine.sample(requests, WARM)
    stir(policy)

    after = engine.sample(requests, WARM)

    assert after == before
    assert largest_gap(policy, requests, after, temperature=0.7) > 0.1


def test_groups_are_reported_as_they_end(policy, engine, process, monkeypatch):
    requests = requests_of(policy, 3)
    reported: dict[int, tuple[Rollout, ...]] = {}
    num_ended: list[int] = []  # completions, each time
    ended, answers = [], process._answers

    def answering(*question: Any) -> Iterator[tuple[str, Any]]:
        for answer in answers(*question):
            ended.extend([answer] if answer[0] == wire.ENDED else [])
            yield answer

    monkeypatch.setattr(process, "_answers", answering)

    def on_group(index: int, completions: tuple[Rollout, ...]) -> None:
        reported[index] = completions
        num_ended.append(len(ended))

    found = engine.sample(requests, WARM, on_group=on_group)

    assert [reported[index] for index in range(len(requests))] == found
    assert num_ended[0] < 3 * len(requests) == num_ended[-1]


def test_keys_and_values_of_the_old_policy_are_forgotten(policy, engine):
    # longer than a block of the cache, which is 128 tokens on a CPU
    requests = requests_of(policy, 3, ["123+456=" * 20])
    engine.sample(requests, WARM)
    stir(policy)

    engine.sync_weights()

    groups = engine.sample(requests, WARM)
    assert largest_gap(policy, requests, groups, temperature=0.7) < CLOSE


@pytest.mark.parametrize("quantization", ["none", "4bit"])
def test_adapters_are_handed_over_by_themselves(wide_folder, process, quantization):
    policy = cpu_policy(wide_folder, lora_rank=5, quantization=quantization)
    engine = engine_of(policy, process)
    requests = requests_of(policy, 4)
    close = CLOSE if quantization == "none" else 0.02  # 4-bit products are rounded
    before = engine.sample(requests, WARM)
    assert largest_gap(policy, requests, before, temperature=0.7) < close
    stir(policy)
    trained = [p.detach().clone() for p in policy.model.parameters()]

    engine.sync_weights()

    assert process.swaps
    after = engine.sample(requests, WARM)
    assert largest_gap(policy, requests, after, temperature=0.7) < close
    assert ids_of(after) != ids_of(before)
    for kept, parameter in zip(trained, policy.model.parameters(), strict=True):
        assert torch.equal(kept, parameter)  # nothing of it became vLLM's


def test_a_prompt_that_is_too_long_is_refused(policy, engine):
    requests = requests_of(policy, 1, ["1" * 240])

    with pytest.raises(ValueError, match=r"240 tokens .* 30 "):
        engine.sample(requests, WARM)
