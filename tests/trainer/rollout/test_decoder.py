"""Decoding with nothing but the arithmetic equals transformers' own forward pass."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from trainer.config import ModelConfig
from trainer.model import attention
from trainer.model.policy import Policy, load_policy
from trainer.rollout import decoder, llama
from trainer.rollout import decoder as graphs
from trainer.rollout.cache import make_cache
from trainer.rollout.decoder import (
    AnyDecoder,
    Decoder,
    Decoding,
    GraphDecoder,
    decoding_methods,
    make_decoder,
)
from trainer.rollout.llama import LlamaDecoder, WideLayer, copied_bytes

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


@pytest.fixture
def flash_kernel(monkeypatch) -> list[int]:
    """torch's kernel as its documentation has it, sequence by sequence on a CPU; how
    many keys each sequence looked at, call by call.
    """
    looked_at: list[int] = []

    def attend(queries, keys, values, query_ends, key_ends, *most, **options):
        most_queries, most_keys = most
        assert set(options) == {"scale", "window_size", "seqused_k"}
        assert query_ends.dtype == key_ends.dtype == options["seqused_k"].dtype
        assert query_ends.dtype == torch.int32
        assert options["window_size"] == (-1, 0)
        found = torch.empty_like(queries)
        sharing = queries.shape[1] // keys.shape[1]
        for row, used in enumerate(options["seqused_k"].tolist()):
            assert query_ends[row + 1] - query_ends[row] == most_queries == 1
            first = int(key_ends[row])
            assert used <= most_keys
            assert first + used <= len(keys)
            looked_at.append(used)
            seen = slice(first, first + used)
            own_keys = keys[seen].repeat_interleave(sharing, dim=1)
            own_values = values[seen].repeat_interleave(sharing, dim=1)
            logits = torch.einsum("hd,khd->hk", queries[row], own_keys)
            weights = (logits * options["scale"]).float().softmax(dim=1)
            found[row] = torch.einsum("hk,khd->hd", weights, own_values.float()).to(
                queries
            )
        return found

    monkeypatch.setattr(attention, "_kernel", lambda: attend)
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
    assert decoding_methods(lean, "auto") == ["flash", "graph", "lean", "plain"]
    assert decoding_methods(four_bits, "auto") == ["lean", "plain"]
    assert decoding_methods(window, "auto") == ["plain"]
    assert decoding_methods(lean, "plain") == ["plain"]
