"""Decoding with nothing but the arithmetic equals transformers' own forward pass."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from tests.trainer.rollout.test_rollout import ids_of, requests_of
from tests.trainer.varlen import slow_kernel
from trainer.config import ModelConfig
from trainer.model import attention
from trainer.model.policy import Policy, load_policy
from trainer.rollout import builtin, decoder, llama
from trainer.rollout import decoder as graphs
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.cache import make_cache
from trainer.rollout.decoder import (
    AnyDecoder,
    Decoder,
    Decoding,
    GraphDecoder,
    decoding_methods,
    make_decoder,
)
from trainer.rollout.engine import Request, SamplingParams
from trainer.rollout.llama import LlamaDecoder, SharedPrompts, WideLayer, copied_bytes

SIZES: dict[str, Any] = {
    "vocab_size": 36,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "initializer_range": 0.3,
}
SCALED_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
KINDS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "llama with biases": LlamaConfig(**SIZES, attention_bias=True),
    "llama 3": LlamaConfig(**SIZES, rope_parameters=SCALED_ROPE),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "one head each": LlamaConfig(**(SIZES | {"num_key_value_heads": 4})),
}
# With tied weights, and with norms of queries and keys; the others are slow.
FAST_KINDS = {"qwen2", "qwen3"}
SOME_KINDS = [
    pytest.param(kind, marks=[] if kind in FAST_KINDS else pytest.mark.slow)
    for kind in KINDS
]


def policy_of(
    folder: Path,
    config: PreTrainedConfig,
    tokenizer: Path,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    **changes: Any,
) -> Policy:
    """A model with weights of all kinds, its adapters' among them if there are any."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    settings = ModelConfig(path=str(folder), device=device, dtype=dtype, **changes)
    return disturb(load_policy(settings, tokenizer_path=str(tokenizer)))


def disturb(policy: Policy) -> Policy:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter += 0.1 * noise.to(parameter.device)
    return policy


def lean_decoder(
    policy: Policy, cache: Any, padding: Any, owners: Any, num_steps: int
) -> Decoder:
    return LlamaDecoder(policy, cache, padding, owners, max_new_tokens=num_steps)


def plain_decoder(
    policy: Policy, cache: Any, padding: Any, owners: Any, _num_steps: int
) -> Decoder:
    return AnyDecoder(policy, cache, padding, owners)


def fixed_decoder(
    policy: Policy, cache: Any, padding: Any, owners: Any, num_steps: int
) -> Decoder:
    """What is recorded on a GPU."""
    return make_decoder(
        policy, cache, padding, owners, max_new_tokens=num_steps, way="graph"
    )


def flash_decoder(
    policy: Policy, cache: Any, padding: Any, owners: Any, num_steps: int
) -> Decoder:
    """What is recorded where torch has the kernel."""
    return make_decoder(
        policy, cache, padding, owners, max_new_tokens=num_steps, way="flash"
    )


def sharing_decoder(
    policy: Policy, cache: Any, padding: Any, owners: Any, num_steps: int
) -> Decoder:
    """What is recorded where groups are large and prompts long."""
    return make_decoder(
        policy, cache, padding, owners, max_new_tokens=num_steps, way="shared"
    )


@pytest.fixture
def flash_kernel(monkeypatch) -> list[int]:
    """torch's kernel as its documentation has it, sequence by sequence on a CPU; how
    many keys each sequence looked at, call by call.
    """
    looked_at: list[int] = []
    monkeypatch.setattr(attention, "_kernel", lambda: partial(slow_kernel, looked_at))
    return looked_at


@pytest.fixture
def recorded(monkeypatch) -> list[Callable[[], None]]:
    """Steps are done each time instead of replayed; those that would be recorded."""
    found: list[Callable[[], None]] = []

    def note(run: Callable[[], None]) -> Callable[[], None]:
        found.append(run)
        run()  # as it is to set libraries up
        return run

    monkeypatch.setattr(graphs, "record", note)
    return found


def hidden_states(
    policy: Policy, kind: Callable[..., Decoder], *, padded: bool, num_steps: int = 68
) -> torch.Tensor:
    """Of some tokens more for four rows, of which two leave after the first."""
    on = partial(torch.tensor, device=policy.device)
    torch.manual_seed(1)
    ids = torch.randint(2, 36, (4, 7)).to(policy.device)
    padding = torch.ones_like(ids)
    if padded:
        padding[1, :3] = padding[3, :5] = 0
    cache = make_cache(policy.model.config)
    with torch.inference_mode():
        policy.body(
            input_ids=ids,
            attention_mask=padding,
            position_ids=(padding.cumsum(dim=1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
        )
        owners = on([0, 1, 1, 3])
        decoder = kind(policy, cache, padding, owners, num_steps)
        positions = padding.sum(dim=1)[owners]
        found = [decoder.step(on([5, 6, 7, 8]), positions).clone()]
        stay = on([1, 2])
        decoder.keep(stay)
        positions = positions[stay] + 1
        found.append(decoder.step(on([9, 10]), positions).clone())
        for place in range(1, num_steps - 2):  # further than the room made at first
            chosen = on([2 + place % 34, 35 - place % 34])
            found.append(decoder.step(chosen, positions + place).clone())
    return torch.cat(found).float()


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_a_step_equals_that_of_transformers(kind, tmp_path, model_folder, monkeypatch):
    policy = policy_of(tmp_path, KINDS[kind], model_folder)

    for padded in (True, False):
        plain = hidden_states(policy, plain_decoder, padded=padded)
        for room in (2**30, 0):
            monkeypatch.setattr(llama, "_MAX_PACKED_BYTES", room)
            lean = hidden_states(policy, lean_decoder, padded=padded)

            torch.testing.assert_close(lean, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("kind", ["llama with biases", "qwen3"])
def test_a_step_with_adapters_equals_that_of_transformers(
    kind, packs, tmp_path, model_folder, monkeypatch
):
    monkeypatch.setattr(llama, "_MAX_PACKED_BYTES", 2**30 if packs else 0)
    policy = policy_of(tmp_path, KINDS[kind], model_folder, lora_rank=4)

    lean = hidden_states(policy, lean_decoder, padded=True, num_steps=3)
    plain = hidden_states(policy, plain_decoder, padded=True, num_steps=3)

    torch.testing.assert_close(lean, plain, rtol=1e-4, atol=1e-4)
    with policy.adapters_off():
        base = hidden_states(policy, plain_decoder, padded=True, num_steps=3)
    assert not torch.allclose(base, plain, atol=0.1)


def test_a_step_over_four_bits_equals_that_of_transformers(tmp_path, model_folder):
    policy = policy_of(
        tmp_path, KINDS["llama"], model_folder, lora_rank=4, quantization="4bit"
    )

    lean = hidden_states(policy, lean_decoder, padded=True, num_steps=3)
    plain = hidden_states(policy, plain_decoder, padded=True, num_steps=3)

    torch.testing.assert_close(lean, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("padded", [True, False])
def test_a_step_whose_tensors_stay_in_place_is_the_same_step(
    padded, dtype, tmp_path, model_folder
) -> None:
    policy = policy_of(tmp_path, KINDS["qwen3"], model_folder, dtype=dtype)

    fixed = hidden_states(policy, fixed_decoder, padded=padded)
    lean = hidden_states(policy, lean_decoder, padded=padded)

    allowed = 1e-4 if dtype == "float32" else 0.2
    torch.testing.assert_close(fixed, lean, rtol=allowed, atol=allowed)


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("padded", [True, False])
def test_a_step_that_attends_to_written_places_alone_is_the_same_step(
    padded, dtype, flash_kernel, tmp_path, model_folder
):
    policy = policy_of(tmp_path, KINDS["qwen3"], model_folder, dtype=dtype)

    flash = hidden_states(policy, flash_decoder, padded=padded)
    lean = hidden_states(policy, lean_decoder, padded=padded)

    allowed = 1e-4 if dtype == "float32" else 0.2
    torch.testing.assert_close(flash, lean, rtol=allowed, atol=allowed)
    # prompts of 7 tokens, of which padding takes 5 and, of those that stay, 3
    assert max(flash_kernel) == (71 if padded else 74)
    assert min(flash_kernel) == (3 if padded else 8)


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("padded", [True, False])
def test_a_step_that_reads_a_groups_prompt_once_is_the_same_step(
    padded, dtype, flash_kernel, tmp_path, model_folder
):
    policy = policy_of(tmp_path, KINDS["qwen3"], model_folder, dtype=dtype)

    shared = hidden_states(policy, sharing_decoder, padded=padded)
    lean = hidden_states(policy, lean_decoder, padded=padded)

    allowed = 1e-4 if dtype == "float32" else 0.2
    torch.testing.assert_close(shared, lean, rtol=allowed, atol=allowed)
    # of the first step: four rows' own token, then three prompts, one of two rows
    lengths = [7, 4, 2] if padded else [7, 7, 7]
    assert flash_kernel[:7] == [1, 1, 1, 1, *lengths]
    # of the last: tokens of the two rows that stay, and their prompt
    assert flash_kernel[-3:] == [67, 67, lengths[1]]


class SomeLayer(NamedTuple):
    num_kv: int
    scale: float


@pytest.mark.usefixtures("flash_kernel")
@pytest.mark.parametrize("seed", range(8))
def test_joined_attention_is_that_to_both_sets_of_keys(seed):
    torch.manual_seed(seed)
    num_prompts, num_kv, sharing, width, room = torch.randint(1, 6, (5,)).tolist()
    lengths, used = torch.randint(1, width + 1, (num_prompts,)), 1 + seed % room
    padding = (torch.arange(width) >= width - lengths[:, None]).long()
    owners = torch.arange(num_prompts).repeat_interleave(
        torch.randint(1, 7, (num_prompts,))
    )
    stay = torch.rand(len(owners)).argsort()[: 1 + len(owners) // 2].sort().values
    layer = SomeLayer(num_kv, scale=0.3)
    prompts = SharedPrompts(padding, owners, num_sharing=sharing)
    states = prompts.states[layer] = torch.randn(num_prompts, width, 2 * num_kv, 8)
    prompts.keep(stay)
    own = torch.randn(len(stay) * room, 2 * num_kv, 8)
    queries = torch.randn(len(stay) * sharing, num_kv, 8)

    rows = torch.arange(len(stay) + 1, dtype=torch.int32)
    found = attention.joined(
        *prompts.attend(queries, layer),
        *attention.attend_to_all(
            queries,
            own[:, :num_kv],
            own[:, num_kv:],
            rows * sharing,
            rows * room,
            sharing,
            room,
            scale=layer.scale,
            keys_used=torch.full((len(stay),), used, dtype=torch.int32),
        ),
    )

    for row, owner in enumerate(owners[stay].tolist()):
        prompt = states[owner, width - int(lengths[owner]) :]
        both = torch.cat([prompt, own[row * room : row * room + used]])
        keys, values = both[:, :num_kv], both[:, num_kv:]
        span = slice(row * sharing, (row + 1) * sharing)
        expected = scaled_dot_product_attention(
            *(part.transpose(0, 1) for part in (queries[span], keys, values)),
            scale=layer.scale,
        )
        torch.testing.assert_close(
            found[span], expected.transpose(0, 1), rtol=1e-6, atol=1e-6
        )


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("max_batch_rows", [512, 7])
def test_completions_are_the_same_with_a_groups_prompt_read_once(
    max_batch_rows, flash_kernel, policy, monkeypatch
):
    monkeypatch.setattr(decoder, "_LEAST_TOKENS", 8)  # so that rows leave
    monkeypatch.setattr(builtin, "is_gpu", lambda _device: True)
    monkeypatch.setattr(builtin, "_LEAST_SAVED_BYTES", 0)
    sampled = {}
    for way in ("shared", "flash", "lean"):
        engine = TransformersEngine(policy, max_batch_rows=max_batch_rows)
        engine.check.is_due = False
        engine._ways = [way]
        flash_kernel.clear()
        sampled[way] = engine.sample(
            requests_of(policy, 6),
            SamplingParams(max_new_tokens=60, temperature=1.0),
        )
        assert bool(flash_kernel) is (way != "lean")

    lengths = {len(ids) for group in ids_of(sampled["lean"]) for ids in group}
    assert len(lengths) > 3
    for way in ("shared", "flash"):
        assert ids_of(sampled[way]) == ids_of(sampled["lean"])
        for ours, expected in zip(sampled[way], sampled["lean"], strict=True):
            for one, other in zip(ours, expected, strict=True):
                assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.mark.usefixtures("recorded", "flash_kernel")
@pytest.mark.parametrize(
    ("prompt", "group", "groups", "way"),
    # a token has 128 bytes in a layer, and a megabyte 8,192 tokens
    [
        (4, 1, 9_999, "flash"),
        (128, 65, 1, "shared"),
        (128, 64, 1, "flash"),
        (128, 33, 2, "shared"),
    ],
)
def test_prompts_are_shared_where_a_layer_reads_much_less(
    prompt, group, groups, way, tmp_path, model_folder, monkeypatch
):
    monkeypatch.setattr(builtin, "_LEAST_SAVED_BYTES", 2**20)
    policy = policy_of(tmp_path, KINDS["llama"], model_folder)
    engine = TransformersEngine(policy, max_batch_rows=512)
    engine._ways = ["shared", "flash"]
    requests = [Request(token_ids=(5,) * prompt, seeds=(1,) * group)] * groups

    assert engine._way_of(builtin._Rows(requests, [])) == way
    engine._ways = ["flash"]
    assert engine._way_of(builtin._Rows(requests, [])) == "flash"


@pytest.mark.usefixtures("recorded")
def test_shared_prompts_are_checked_whether_they_pay_or_not(
    flash_kernel, tmp_path, model_folder
):
    policy = policy_of(tmp_path, KINDS["llama"], model_folder)
    engine = TransformersEngine(policy, max_batch_rows=512)
    engine._ways = ["shared", "flash"]
    requests = [Request(token_ids=(5,) * 9, seeds=(1,))]
    params = SamplingParams(max_new_tokens=4, temperature=1.0)

    assert engine.measure_gap(requests, params) < 1e-5
    assert set(flash_kernel) == {9, 1, 2, 3}  # prompt and own tokens apart
    flash_kernel.clear()
    engine.check.is_due = False
    engine.sample(requests, params)
    assert set(flash_kernel) == {10, 11, 12}


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_a_step_by_maps_side_by_side_is_the_same_step(
    kind, tmp_path, model_folder, monkeypatch
):
    monkeypatch.setattr(llama, "_MAX_PACKED_BYTES", 0)
    policy = policy_of(tmp_path, KINDS[kind], model_folder)
    made = []
    monkeypatch.setattr(
        llama, "WideLayer", lambda layer: made.append(layer) or WideLayer(layer)
    )

    wide = hidden_states(policy, fixed_decoder, padded=True, num_steps=4)
    lean = hidden_states(policy, lean_decoder, padded=True, num_steps=4)

    assert len(made) == 3
    assert 0 < copied_bytes(policy) < policy.num_parameters * 4
    torch.testing.assert_close(wide, lean, rtol=1e-4, atol=1e-4)


def test_maps_with_adapters_and_large_models_are_not_copied(
    tmp_path, model_folder, monkeypatch
):
    adapted = policy_of(tmp_path, KINDS["qwen2"], model_folder, lora_rank=2)
    large = policy_of(tmp_path, KINDS["qwen2"], model_folder)
    monkeypatch.setattr(llama, "_MAX_WIDE_BYTES", 10_000)

    assert copied_bytes(adapted) == 0
    assert copied_bytes(large) == 0


@pytest.mark.parametrize(("num_steps", "least", "count"), [(130, 512, 2), (130, 30, 4)])
def test_a_step_is_recorded_again_when_its_tensors_move(
    num_steps, least, count, recorded, tmp_path, model_folder, monkeypatch
):
    monkeypatch.setattr(llama, "_LEAST_FIXED", least)
    policy = policy_of(tmp_path, KINDS["llama"], model_folder)

    hidden_states(policy, fixed_decoder, padded=True, num_steps=num_steps)

    # the first step and the first of two rows; with little room also at 64 and 128
    assert len(recorded) == count


def test_rows_leave_a_graph_only_where_much_is_to_come():
    decoder = GraphDecoder.__new__(GraphDecoder)

    assert decoder.should_drop_ended(64, 128, 128)
    assert not decoder.should_drop_ended(64, 128, 127)
    assert not decoder.should_drop_ended(63, 128, 128)


def test_a_step_in_bfloat16_is_as_near_as_its_numbers_are(tmp_path, model_folder):
    policy = policy_of(tmp_path, KINDS["qwen3"], model_folder, dtype="bfloat16")

    lean = hidden_states(policy, lean_decoder, padded=True, num_steps=3)
    plain = hidden_states(policy, plain_decoder, padded=True, num_steps=3)

    torch.testing.assert_close(lean, plain, rtol=0.05, atol=0.05)


def decoder_of(policy: Policy, decoding: Decoding = "auto") -> Decoder:
    cache, rows = make_cache(policy.model.config), torch.arange(2)
    with torch.inference_mode():
        policy.body(
            input_ids=torch.full((2, 3), 5), past_key_values=cache, use_cache=True
        )
        return make_decoder(
            policy,
            cache,
            torch.ones(2, 3).long(),
            rows,
            max_new_tokens=4,
            way=decoding_methods(policy, decoding)[0],
        )


@pytest.mark.parametrize("changes", [{}, {"lora_rank": 2}])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_models_built_like_llama_are_decoded_lean(
    kind, changes, tmp_path, model_folder
):
    policy = policy_of(tmp_path, KINDS[kind], model_folder, **changes)

    assert isinstance(decoder_of(policy), LlamaDecoder)


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**SIZES, sliding_window=4),
        LlamaConfig(
            **SIZES,
            rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
        ),
    ],
)
def test_unknown_models_are_decoded_by_transformers(config, tmp_path, model_folder):
    policy = policy_of(tmp_path, config, model_folder)

    assert isinstance(decoder_of(policy), AnyDecoder)


def test_any_model_can_be_decoded_plainly(tmp_path, model_folder):
    policy = policy_of(tmp_path, KINDS["llama"], model_folder)

    assert isinstance(decoder_of(policy, "plain"), AnyDecoder)


def test_a_gpu_replays_graphs_unless_weights_are_in_four_bits(
    tmp_path, model_folder, monkeypatch
):
    make = partial(policy_of, tokenizer=model_folder, lora_rank=2)
    lean = make(tmp_path / "lean", KINDS["llama"])
    window = make(tmp_path / "window", MistralConfig(**SIZES, sliding_window=4))
    four_bits = make(tmp_path / "four", KINDS["llama"], quantization="4bit")
    assert decoding_methods(lean, "auto") == ["lean", "plain"]
    monkeypatch.setattr(decoder, "is_gpu", lambda _device: True)

    assert decoding_methods(lean, "auto") == ["graph", "lean", "plain"]
    lean.is_varlen = True  # as its trial has found
    assert decoding_methods(lean, "auto")[:2] == ["shared", "flash"]
    assert decoding_methods(lean, "auto")[2:] == ["graph", "lean", "plain"]
    assert decoding_methods(four_bits, "auto") == ["lean", "plain"]
    assert decoding_methods(window, "auto") == ["plain"]
    assert decoding_methods(lean, "plain") == ["plain"]
