"""Packed rows through transformers' own pass, with either attention."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen3MoeConfig,
)
from transformers.models.glm4 import modeling_glm4
from transformers.models.llama import modeling_llama
from transformers.models.phi3 import modeling_phi3
from transformers.models.qwen3 import modeling_qwen3

from tests.trainer.model.test_flat import BATCHES, gradients, transformers_hidden
from tests.trainer.rollout.test_decoder import KINDS, SIZES, policy_of
from tests.trainer.samples import cut
from tests.trainer.varlen import reference
from trainer.model import attention, kernels
from trainer.model.attention import Copies, make_attention
from trainer.model.kernels import (
    rotate_both,
    use_fused_kernels,
    use_plain_kernels,
)
from trainer.model.policy import Policy

CPU = torch.device("cpu")
WINDOWS: dict[str, Any] = {"sliding_window": 4}
OTHERS: dict[str, PreTrainedConfig] = {
    "mistral with windows": MistralConfig(**SIZES, **WINDOWS),
    "granite": GraniteConfig(**SIZES),
    "gemma 3": Gemma3TextConfig(**SIZES, **WINDOWS, head_dim=16),
    "mixture": Qwen3MoeConfig(
        **SIZES,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        head_dim=16,
    ),
}


@pytest.fixture(params=["blocks", "varlen"])
def kernel(request, monkeypatch) -> str:
    monkeypatch.setattr(attention, "varlen_attention", reference)
    return str(request.param)


def packed(policy: Policy, kernel: str) -> Policy:
    """The policy as on a GPU, in the number format of a CPU."""
    kernels.use_attention(policy.model)
    policy.form, policy.is_varlen = "packed", kernel == "varlen"
    return policy


@given(
    prompts=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    completions=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=20
    ),
    window=st.none() | st.integers(1, 6),
)
@settings(deadline=None)
def test_both_attentions_are_one(prompts, completions, window):
    prompts.sort(reverse=True)
    completions.sort(reverse=True)
    lengths = [length for length, _ in completions]
    owners = [owner % len(prompts) for _, owner in completions]
    generator = torch.Generator().manual_seed(sum(lengths))
    inputs = [
        torch.randn(
            sum(prompts) + sum(lengths),
            heads,
            8,
            dtype=torch.float64,
            generator=generator,
            requires_grad=True,
        )
        for heads in (4, 2, 2)
    ]
    found = []
    for is_varlen in (True, False):
        attend = make_attention(
            prompts,
            lengths,
            owners,
            device=CPU,
            dtype=torch.float64,
            is_varlen=is_varlen,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attention, "varlen_attention", reference)
            result = attend(*inputs, scale=0.3, window=window)
        slopes = torch.autograd.grad((result * result.detach().cos()).sum(), inputs)
        found.append((result, *slopes))

    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("index", [[0, 1, 2], [1, 0, 1, 2, 1, 2], [0, 0, 0]])
def test_a_rows_gradient_is_the_sum_of_its_copies(index):
    import numpy as np

    copies = Copies.make(np.array(index), device=CPU)
    rows = torch.randn(max(index) + 1, 2, 3, dtype=torch.float64, requires_grad=True)

    assert torch.equal(copies.of(rows), rows[index])
    assert torch.autograd.gradcheck(copies.of, rows)


def check(policy: Policy, name: str) -> None:
    """Values and gradients of a packed row are those of padded rows."""
    for micro in cut(BATCHES[name], policy, max_tokens=1_000):
        expected = transformers_hidden(policy, micro)
        wanted = gradients(policy, expected)
        found = policy.hidden(micro)
        own = gradients(policy, found)

        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert own.keys() == wanted.keys()
        largest = max(gradient.abs().max().item() for gradient in wanted.values())
        for key, gradient in wanted.items():
            bound = 1e-5 * gradient.abs().max().item() + 2e-6 * largest
            torch.testing.assert_close(own[key], gradient, rtol=1e-4, atol=bound)


@pytest.mark.parametrize("name", ["shared prompts", "prompts too", "many lengths"])
@pytest.mark.parametrize(
    "kind",
    ["llama 3", *(pytest.param(k, marks=pytest.mark.slow) for k in ("qwen2", "qwen3"))],
)
def test_a_packed_row_is_worth_its_padded_rows(
    kind, name, kernel, tmp_path, model_folder
):
    policy = packed(policy_of(tmp_path, KINDS[kind], model_folder), kernel)

    check(policy, name)


@pytest.mark.parametrize("kind", OTHERS)
def test_so_it_is_for_models_of_other_kinds(kind, kernel, tmp_path, model_folder):
    policy = policy_of(tmp_path, OTHERS[kind], model_folder)
    assert policy.form == "packed"
    policy.is_varlen = kernel == "varlen"

    check(policy, "shared prompts")


@pytest.mark.parametrize(
    "changes",
    [
        {"gradient_checkpointing": True},
        {"lora_rank": 4},
        {"lora_rank": 4, "gradient_checkpointing": True},
    ],
)
def test_so_it_is_with_adapters_and_recomputed_activations(
    changes, kernel, tmp_path, model_folder
):
    policy = policy_of(tmp_path, KINDS["qwen3"], model_folder, **changes)

    check(packed(policy, kernel), "shared prompts")


def test_fused_kernels_compute_the_same(tmp_path, model_folder):
    policy = policy_of(tmp_path, KINDS["qwen3"], model_folder)
    plain = dict(policy.model.named_modules())
    use_fused_kernels(policy.model)
    fused = [name for name, each in plain.items() if "forward" in vars(each)]
    norms = [name for name in plain if name.endswith(("norm", "mlp"))]

    assert fused == norms
    assert modeling_qwen3.apply_rotary_pos_emb is rotate_both
    check(packed(policy, "blocks"), "shared prompts")
    copy = policy.copied().model.get_submodule("model.norm")
    assert copy.forward.__self__ is copy

    use_plain_kernels(policy.model)
    assert not any("forward" in vars(each) for each in plain.values())
    assert modeling_qwen3.apply_rotary_pos_emb is not rotate_both


@pytest.mark.parametrize(
    ("source", "is_llamas"),
    [(modeling_qwen3, True), (modeling_phi3, False), (modeling_glm4, False)],
)
def test_rotations_of_another_kind_are_left(source, is_llamas):
    class Attention(torch.nn.Module):
        __module__ = source.__name__

    before = source.apply_rotary_pos_emb
    use_fused_kernels(Attention())
    after = source.apply_rotary_pos_emb
    use_plain_kernels(Attention())

    assert (after is rotate_both) == is_llamas
    assert is_llamas or after is before


def test_a_rotation_without_code_to_be_seen_is_left():
    class Attention(torch.nn.Module):
        __module__ = modeling_qwen3.__name__

    class Kernel:
        def __call__(self, *given):
            return given

    usual, kernel = modeling_qwen3.apply_rotary_pos_emb, Kernel()
    modeling_qwen3.apply_rotary_pos_emb = kernel
    try:
        use_fused_kernels(Attention())

        assert modeling_qwen3.apply_rotary_pos_emb is kernel
    finally:
        modeling_qwen3.apply_rotary_pos_emb = usual


@pytest.mark.parametrize("axis", [1, 2])
def test_both_are_rotated_as_llama_rotates_them(axis):
    torch.manual_seed(0)
    shape = (2, 3, 5, 8) if axis == 1 else (2, 5, 3, 8)
    cos, sin = torch.randn(2, 2, 5, 8, dtype=torch.float64)
    ways = []
    for rotate in (rotate_both, modeling_llama.apply_rotary_pos_emb):
        torch.manual_seed(1)
        inputs = [
            torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in "qk"
        ]
        turned = rotate(*inputs, cos, sin, unsqueeze_dim=axis)
        weights = torch.arange(turned[0].numel(), dtype=torch.float64).view(shape)
        sum((each * weights).sum() for each in turned).backward()
        ways.append([*turned, *(each.grad for each in inputs)])

    torch.testing.assert_close(ways[0], ways[1])


def test_a_model_that_bounds_its_attention_is_padded(tmp_path, model_folder):
    config = Gemma2Config(**SIZES, **WINDOWS, head_dim=16, final_logit_softcapping=None)

    policy = policy_of(tmp_path, config, model_folder)

    assert policy.form == "padded"
    assert policy.model.config._attn_implementation != kernels._NAME
    assert policy.slowed == ""


def test_a_kernel_that_computes_something_else_is_left(
    tmp_path, model_folder, monkeypatch
):
    policy = policy_of(tmp_path, OTHERS["granite"], model_folder)
    monkeypatch.setattr("trainer.model.policy.takes_varlen", lambda *_: True)

    monkeypatch.setattr(attention, "varlen_attention", reference)
    assert policy.choose_form() == ""
    assert policy.is_varlen

    def wrong(*inputs: Any, **options: Any) -> torch.Tensor:
        return reference(*inputs, **options | {"window": 1})

    monkeypatch.setattr(attention, "varlen_attention", wrong)
    assert "hidden states" in policy.choose_form()
    assert (policy.form, policy.is_varlen) == ("packed", False)


def test_without_a_layout_the_attention_is_sdpa(tmp_path, model_folder):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(OTHERS["gemma 3"])
    ids = torch.randint(0, SIZES["vocab_size"], (2, 12))
    expected = model(input_ids=ids).logits

    assert kernels.use_attention(model) == "sdpa"

    assert torch.equal(model(input_ids=ids).logits, expected)


@pytest.mark.parametrize("rank", [0, 4])
def test_a_saved_model_knows_nothing_of_it(rank, tmp_path, model_folder):
    policy = policy_of(
        tmp_path / "start", OTHERS["granite"], model_folder, lora_rank=rank
    )
    assert policy.model.config._attn_implementation == kernels._NAME

    policy.save(tmp_path / "saved")

    assert kernels._NAME not in (tmp_path / "saved" / "config.json").read_text()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert loaded.config._attn_implementation == "sdpa"
