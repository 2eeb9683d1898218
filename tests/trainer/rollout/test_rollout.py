"""Sampling: shared prefills, rows that leave, seeds and log-probs."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    Gemma3nForCausalLM,
    Gemma3nTextConfig,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
)

from tests.trainer.tiny import write_model
from trainer.config import DataConfig, ModelConfig
from trainer.data import Prompt, PromptRenderer, Row
from trainer.model.packing import Batch, TrainingSample
from trainer.model.policy import Policy, load_policy
from trainer.rollout import builtin as transformers_engine
from trainer.rollout import decoder
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.decoder import draw_tokens
from trainer.rollout.engine import Request, SamplingParams, Slowed, logprob_gap
from trainer.seeding import derive, uniforms
from trainer.types import Rollout

NO_MEMORY = "CUDA out of memory. Tried to allocate 2 GiB."
TEXTS = ["1+1=", "a", "(12 - 3) * 7 = ?\n", "12345678901234567890=", "b>c"]


def prompts_of(policy: Policy) -> list[Prompt]:
    renderer = PromptRenderer(policy.tokenizer, DataConfig(rows="-"))
    return [
        renderer.render(Row(index=n, prompt=text, answer=None, columns={}))
        for n, text in enumerate(TEXTS)
    ]


def requests_of(policy: Policy, group_size: int) -> list[Request]:
    return [
        Request(
            token_ids=prompt.token_ids,
            seeds=tuple(1000 * prompt.index + k for k in range(group_size)),
        )
        for prompt in prompts_of(policy)
    ]


def sample(
    policy: Policy, requests: list[Request], **options: Any
) -> list[tuple[Rollout, ...]]:
    settings = {"max_new_tokens": 30, "temperature": 1.0} | options
    rows = settings.pop("max_batch_rows", 512)
    engine = TransformersEngine(policy, max_batch_rows=rows)
    return engine.sample(requests, SamplingParams(**settings))


def ids_of(groups: list[tuple[Rollout, ...]]) -> list[list[tuple[int, ...]]]:
    return [[completion.token_ids for completion in group] for group in groups]


@pytest.mark.parametrize("rows", [512, 3])
def test_a_request_ends_at_its_own_limit_and_changes_no_other(policy, rows):
    requests = requests_of(policy, 2)
    whole = ids_of(sample(policy, requests))
    limits = [None, 1, 7, 30, 99]

    limited = sample(
        policy,
        [
            replace(request, max_new_tokens=limit)
            for request, limit in zip(requests, limits, strict=True)
        ],
        max_batch_rows=rows,
    )

    for group, ids, limit in zip(limited, whole, limits, strict=True):
        assert [c.token_ids for c in group] == [own[:limit] for own in ids]
        for completion in group:
            is_cut = completion.token_ids[-1] not in policy.eos_ids
            assert completion.end_reason == ("length" if is_cut else "stop")


def test_greedy_decoding_equals_transformers(policy):
    requests = requests_of(policy, 1)

    found = sample(policy, requests, temperature=0)

    for request, (completion,) in zip(requests, found, strict=True):
        ids = torch.tensor([request.token_ids])
        expected = policy.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=30,
            do_sample=False,
        )
        assert list(completion.token_ids) == expected[0, ids.shape[1] :].tolist()


def test_logprobs_equal_the_trainers(policy):
    requests = requests_of(policy, 6)

    groups = sample(policy, requests, temperature=0.7)

    samples = [
        TrainingSample(
            prompt_ids=request.token_ids,
            completion_ids=completion.token_ids,
            sampling_logprobs=completion.logprobs,
        )
        for request, group in zip(requests, groups, strict=True)
        for completion in group
    ]
    for micro in Batch(tuple(samples)).micro_batches(
        max_tokens=200, device=policy.device
    ):
        with torch.no_grad():
            logprobs, _ = policy.logprobs(micro, temperature=0.7)
        assert torch.allclose(logprobs, micro.sampling_logprobs, atol=2e-5)


@pytest.mark.parametrize("kind", ["gpt_neo", "eager"])
def test_attention_that_adds_its_mask_gives_the_trainers_logprobs(
    kind, policy, model_folder, tmp_path
):
    if kind == "gpt_neo":
        config = GPTNeoConfig(
            vocab_size=len(policy.tokenizer),
            hidden_size=32,
            num_layers=2,
            attention_types=[[["global", "local"], 1]],
            num_heads=4,
            max_position_embeddings=64,
            eos_token_id=1,
            initializer_range=0.3,
        )
        torch.manual_seed(0)
        GPTNeoForCausalLM(config).save_pretrained(tmp_path)
        policy = load_policy(
            ModelConfig(path=str(tmp_path), device="cpu"),
            tokenizer_path=str(model_folder),
        )
    else:
        policy.model.set_attn_implementation("eager")
    requests = requests_of(policy, 2)[:2]  # of prompts of 4 tokens and of 1

    found = TransformersEngine(policy, max_batch_rows=64, decoding="plain").sample(
        requests, SamplingParams(max_new_tokens=20, temperature=1.0)
    )

    assert logprob_gap(policy, requests, found, temperature=1.0) < 1e-5


@pytest.mark.parametrize(("off", "code"), [(0.01, "engine_fallback"), (0.5, "")])
def test_log_probs_that_are_off_by_every_way_are_reported(
    off, code, policy, monkeypatch
):
    def drawn(*args: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        chosen, logprobs = draw_tokens(*args, **options)
        return chosen, logprobs + off

    monkeypatch.setattr(decoder, "draw_tokens", drawn)
    engine = TransformersEngine(policy, max_batch_rows=64)
    reported: list[Slowed] = []
    engine.on_slowed = reported.append
    requests = requests_of(policy, 1)

    if code:
        engine.sample(requests, SamplingParams(max_new_tokens=5, temperature=1.0))
    else:
        with pytest.raises(ValueError, match=r"0\.5 nats"):
            engine.sample(requests, SamplingParams(max_new_tokens=5, temperature=1.0))

    assert [slowed.code for slowed in reported] == ([code] if code else [])


def test_a_model_that_keeps_no_keys_and_values_is_refused(model_folder, tmp_path):
    config = OpenAIGPTConfig(vocab_size=36, n_embd=32, n_layer=1, n_head=4)
    OpenAIGPTLMHeadModel(config).save_pretrained(tmp_path)
    policy = load_policy(
        ModelConfig(path=str(tmp_path), device="cpu"), tokenizer_path=str(model_folder)
    )

    with pytest.raises(ValueError, match="OpenAIGPTLMHeadModel") as error:
        sample(policy, requests_of(policy, 2))

    assert "vllm_server" not in str(error.value)


def test_a_completion_follows_from_its_seed_alone(policy):
    requests = requests_of(policy, 6)

    together = ids_of(sample(policy, requests))

    assert together == ids_of(sample(policy, requests))
    assert together == ids_of(sample(policy, requests, max_batch_rows=4))
    alone = [ids_of(sample(policy, [request]))[0] for request in requests]
    assert together == alone
    assert len({ids for group in together for ids in group}) > 20


def test_a_prompt_is_prefilled_once_for_its_group(policy, monkeypatch):
    prefilled: list[int] = []
    original = TransformersEngine._prefill_part

    def counting(self: Any, ids: torch.Tensor, *others: Any) -> Any:
        prefilled.append(len(ids))
        return original(self, ids, *others)

    monkeypatch.setattr(TransformersEngine, "_prefill_part", counting)

    sample(policy, requests_of(policy, 6))

    checked, *sampled = prefilled
    assert (checked, sum(sampled)) == (len(TEXTS), len(TEXTS))


def test_a_prefill_in_parts_gives_the_same_completions(policy, monkeypatch):
    requests = requests_of(policy, 3)
    whole = ids_of(sample(policy, requests))

    monkeypatch.setattr(transformers_engine, "_PREFILL_TOKENS", 40)

    assert ids_of(sample(policy, requests)) == whole


def test_completions_outgrow_the_caches_first_block(policy):
    policy.eos_ids = (len(policy.tokenizer) + 5,)  # never ends

    groups = sample(policy, requests_of(policy, 2), max_new_tokens=150)

    assert {c.num_tokens for group in groups for c in group} == {150}
    assert {c.end_reason for group in groups for c in group} == {"length"}


def test_a_completion_ends_with_its_end_token(policy):
    groups = sample(policy, requests_of(policy, 20), max_new_tokens=40)

    ended = [c for group in groups for c in group if c.end_reason == "stop"]
    assert ended
    for completion in ended:
        assert completion.token_ids[-1] in policy.eos_ids
        assert not set(completion.token_ids[:-1]) & set(policy.eos_ids)
        assert "<eos>" not in completion.text
        written = policy.tokenizer.encode(completion.text, add_special_tokens=False)
        assert written == list(completion.token_ids[:-1])


def test_layers_that_share_keys_give_the_trainers_logprobs(
    policy, model_folder, tmp_path, monkeypatch
):
    size = len(policy.tokenizer)
    config = Gemma3nTextConfig(
        vocab_size=size,
        vocab_size_per_layer_input=size,
        hidden_size=32,
        hidden_size_per_layer_input=8,
        intermediate_size=32,
        num_hidden_layers=4,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        sliding_window=8,
        altup_num_inputs=2,
        laurel_rank=4,
        activation_sparsity_pattern=[0.0] * 4,
        final_logit_softcapping=1e4,
        eos_token_id=1,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    Gemma3nForCausalLM(config).save_pretrained(tmp_path)
    settings = ModelConfig(path=str(tmp_path), device="cpu")
    policy = load_policy(settings, tokenizer_path=str(model_folder))
    monkeypatch.setattr(transformers_engine, "_PREFILL_TOKENS", 40)  # several parts
    requests = requests_of(policy, 2)

    found = sample(policy, requests, max_new_tokens=12)

    assert logprob_gap(policy, requests, found, temperature=1.0) < 1e-5


def test_models_with_a_window_sample_as_transformers_do(tmp_path):
    folder = write_model(
        tmp_path / "window",
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=1,
    )
    policy = load_policy(ModelConfig(path=str(folder), device="cpu"))
    requests = requests_of(policy, 1)

    found = sample(policy, requests, temperature=0)

    for request, (completion,) in zip(requests, found, strict=True):
        ids = torch.tensor([request.token_ids])
        expected = policy.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=30,
            do_sample=False,
        )
        assert list(completion.token_ids) == expected[0, ids.shape[1] :].tolist()


def test_tokens_are_drawn_with_their_probabilities():
    logits = torch.tensor([0.5, -1.0, 2.0, 0.0, -torch.inf])
    seeds = [derive(0, index) for index in range(4000)]
    drawn = uniforms(seeds, first=3, count=1)[:, 0]

    chosen, logprobs = draw_tokens(logits.expand(4000, 5), drawn, temperature=2.0)

    probs = (logits / 2).softmax(0)
    counts = Counter(chosen.tolist())
    for token in range(5):
        spread = (4000 * probs[token] * (1 - probs[token])).sqrt().item()
        assert abs(counts[token] - 4000 * probs[token].item()) <= 4 * spread
    assert torch.allclose(logprobs, probs.log()[chosen])


def test_random_numbers_are_even_and_follow_from_seed_and_place():
    values = uniforms(range(200), first=0, count=100)

    assert values.min() >= 0
    assert values.max() < 1
    counts = np.histogram(values, bins=10, range=(0, 1))[0]
    assert (abs(counts - 2000) < 4 * 2000**0.5).all()
    assert torch.equal(uniforms([7], first=40, count=5)[0], values[7, 40:45])


def with_little_memory(monkeypatch: pytest.MonkeyPatch, *, room: int) -> list[int]:
    """Decoding of more than `room` rows fails; the numbers of rows decoded."""
    tried: list[int] = []
    draw = draw_tokens

    def drawn(
        logits: torch.Tensor, uniform: torch.Tensor, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tried.append(len(logits))
        if tried[-1] > room:
            raise torch.OutOfMemoryError(NO_MEMORY)
        return draw(logits, uniform, **options)

    monkeypatch.setattr("trainer.rollout.decoder.draw_tokens", drawn)
    return tried


def test_batches_shrink_to_fit_memory(policy, monkeypatch):
    requests = requests_of(policy, 4)
    expected = sample(policy, requests, max_batch_rows=4)
    tried = with_little_memory(monkeypatch, room=7)
    reported: list[Slowed] = []
    engine = TransformersEngine(policy, max_batch_rows=512)
    engine.on_slowed = reported.append
    params = SamplingParams(max_new_tokens=30, temperature=1.0)

    found = engine.sample(requests, params)

    assert found == expected
    # 20 rows fail, 10 are cut between groups of 4 and fail, 4 do not
    assert [size for size in tried if size > 7] == [20, 8]
    assert reported[-1] == Slowed(
        code="out_of_memory",
        reason=NO_MEMORY,
        rows=4,
    )
    tried.clear()
    engine.sample(requests, params)
    assert max(tried) == 4


def test_completions_found_before_memory_ran_out_are_kept(policy, monkeypatch):
    requests = requests_of(policy, 3)
    expected = sample(policy, requests, max_batch_rows=6)
    draw, calls = draw_tokens, 0

    def once(*args: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal calls
        calls += 1
        if calls == 40:  # in the second batch
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return draw(*args, **options)

    monkeypatch.setattr("trainer.rollout.decoder.draw_tokens", once)

    found = sample(policy, requests, max_batch_rows=6)

    assert ids_of(found) == ids_of(expected)


def test_a_completion_that_does_not_fit_alone_is_an_error(policy, monkeypatch):
    with_little_memory(monkeypatch, room=0)

    with pytest.raises(torch.OutOfMemoryError):
        sample(policy, requests_of(policy, 2))


@pytest.mark.parametrize("max_batch_rows", [512, 10, 3])
def test_groups_are_reported_as_they_end(policy, max_batch_rows):
    requests = requests_of(policy, 8)
    engine = TransformersEngine(policy, max_batch_rows=max_batch_rows)
    params = SamplingParams(max_new_tokens=60, temperature=1.0)
    reported: dict[int, tuple[Rollout, ...]] = {}

    def on_group(index: int, completions: tuple[Rollout, ...]) -> None:
        assert index not in reported
        reported[index] = completions

    found = engine.sample(requests, params, on_group=on_group)

    assert [reported[index] for index in range(len(requests))] == found
    assert found == engine.sample(requests, params)


def test_a_group_is_reported_while_longer_ones_are_sampled(policy, monkeypatch):
    requests = requests_of(policy, 2)[:3]
    stops = [9, 9, 2, 2, 5, 5]  # tokens of each row; the shortest prompt's come first
    rows, index = list(range(6)), 0

    def drawn(
        logits: torch.Tensor, uniform: torch.Tensor, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal rows, index
        rows = [row for row in rows if stops[row] > index]
        index += 1
        ids = [policy.eos_ids[0] if stops[row] == index else 5 for row in rows]
        return torch.tensor(ids), torch.zeros(len(ids))

    monkeypatch.setattr("trainer.rollout.decoder.draw_tokens", drawn)
    reported: list[tuple[str, int]] = []
    engine = TransformersEngine(policy, max_batch_rows=512)
    engine.check.is_due = False  # these log-probs are made up

    engine.sample(
        requests,
        SamplingParams(max_new_tokens=60, temperature=1.0),
        on_group=lambda n, _: reported.append((TEXTS[n], index)),
    )

    assert reported == [(TEXTS[0], 2), (TEXTS[2], 5), (TEXTS[1], 9)]
