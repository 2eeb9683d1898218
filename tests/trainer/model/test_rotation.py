"""Rotations that transformers chooses by a batch's longest text are the run's."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.architectures import Plain, write_architecture
from tests.trainer.rollout_servers import Served, engine_of
from tests.trainer.tiny import config_tree
from tests.trainer.tiny_architectures import ARCHITECTURES, LONGEST
from trainer.config import ModelConfig, RunConfig
from trainer.model.packing import Batch, TrainingSample
from trainer.model.policy import Policy, load_policy
from trainer.model.reference import load_start
from trainer.rollout import select
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.engine import Request, SamplingParams
from trainer.rollout.vllm import why_not_rotated
from trainer.serving import reference_server

NAMES = ["Llama (dynamic RoPE)", "Phi 3 (long context)"]
SHORTENED = 12  # tokens, which longrope rotates otherwise than LONGEST
SHORT, LONG = (4, 7, 9), tuple(range(2, 32))


@pytest.fixture(scope="module", params=NAMES)
def folder(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("rotated")
    write_architecture(ARCHITECTURES[request.param], path)
    return path


@pytest.fixture
def rotated(folder) -> Policy:
    policy = load_policy(ModelConfig(path=str(folder), device="cpu"))
    policy.fix_longest(LONGEST)
    return policy


def logprobs_of(policy: Policy, *prompts: tuple[int, ...]) -> torch.Tensor:
    """Of the completion of the first prompt."""
    samples = [
        TrainingSample(prompt_ids=ids, completion_ids=(5, 6), sampling_logprobs=(0, 0))
        for ids in prompts
    ]
    micro = Batch(tuple(samples)).pack([*range(len(prompts))], device=policy.device)
    with torch.no_grad():
        found, _ = policy.logprobs(micro, temperature=1.0)
    return found[0]


def test_texts_longer_than_a_model_attends_to_are_refused(tmp_path):
    write_architecture(ARCHITECTURES["Doge with long texts"], tmp_path)
    policy = load_policy(ModelConfig(path=str(tmp_path), device="cpu"))

    assert not policy.fix_longest(12)
    with pytest.raises(ValueError, match=r"12 .* 13 "):
        policy.fix_longest(13)


def test_a_text_has_the_same_logprobs_beside_any_other(rotated, folder):
    plain = Plain(folder, longest=LONGEST)

    expected, _ = plain.logprobs(SHORT, (5, 6))

    for others in ((), (LONG,)):
        found = logprobs_of(rotated, SHORT, *others)
        torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-5)
    unlike, _ = Plain(folder).logprobs(SHORT, (5, 6))
    assert (unlike - expected).abs().max() > 1e-2


def test_sampling_has_the_logprobs_of_updates(rotated):
    engine = TransformersEngine(rotated, max_batch_rows=8)
    requests = [Request(token_ids=ids, seeds=(1,)) for ids in (SHORT, LONG)]
    params = SamplingParams(max_new_tokens=2, temperature=1.0)

    for asked in (requests, requests[:1]):
        (completion,), *_ = engine.sample(asked, params)
        sample = TrainingSample(
            prompt_ids=SHORT,
            completion_ids=completion.token_ids,
            sampling_logprobs=completion.logprobs,
        )
        micro = Batch((sample,)).pack([0], device=rotated.device)
        found, _ = rotated.logprobs(micro, temperature=1.0)
        assert (found - micro.sampling_logprobs).abs().max().item() < 1e-5


def test_copies_and_the_starting_model_are_rotated_as_the_policy(
    rotated, folder, rows_path
):
    config = RunConfig.model_validate(config_tree(folder, rows_path))
    expected = logprobs_of(rotated, SHORT)

    start = load_start(config, rotated.copied())

    for policy in (start, rotated.copied()):
        assert torch.equal(logprobs_of(policy, SHORT), expected)


def test_vllm_is_refused_where_it_rotates_otherwise(rotated, folder, rows_path):
    is_dynamic = "Llama" in type(rotated.model).__name__
    config = RunConfig.model_validate(config_tree(folder, rows_path))

    assert bool(why_not_rotated(rotated, LONGEST)) == is_dynamic
    assert bool(why_not_rotated(rotated, LONGEST + 1)) == is_dynamic
    assert why_not_rotated(rotated, SHORTENED)
    rotated.fix_longest(SHORTENED)
    with pytest.raises(ValueError, match="dynamic" if is_dynamic else "12"):
        select.start_vllm(config, rotated)


def test_a_rollout_server_that_rotates_otherwise_is_refused(rotated):
    served = Served()
    rotated.longest = SHORTENED

    with pytest.raises(ValueError, match=f"--max-length {SHORTENED}"):
        engine_of(rotated, served.url)

    served.end()


def test_a_reference_server_refuses_such_a_model(folder):
    options: dict[str, Any] = {"revision": None, "device": "cpu", "dtype": "float32"}
    args = Namespace(model=str(folder), **options)

    with pytest.raises(ValueError, match=r"reference\.kind"):
        reference_server._server(args, "token")
