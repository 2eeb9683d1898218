"""Models of other kinds than Llama: their log-probs are those of transformers."""

from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    NanoChatConfig,
    OPTConfig,
    PhimoeConfig,
    PreTrainedConfig,
    SeedOssConfig,
)
from transformers.models.granite.modeling_granite import GraniteDecoderLayer

from tests.trainer.model.test_attention import OTHERS, WINDOWS, check
from tests.trainer.rollout.test_decoder import SIZES, policy_of
from tests.trainer.samples import cut, make_batch
from tests.trainer.varlen import reference
from trainer.config import ModelConfig
from trainer.model import attention, kernels
from trainer.model import policy as module
from trainer.model.policy import Policy, load_policy

CHECKPOINTING = {"gradient_checkpointing": True}
# They drop units, or choose experts by chance, in their layers themselves.
NOISY: dict[str, PreTrainedConfig] = {
    "seed-oss": SeedOssConfig(
        **SIZES, head_dim=8, residual_dropout=0.3, attention_dropout=0.3
    ),
    "opt": OPTConfig(
        **SIZES, ffn_dim=48, word_embed_proj_dim=32, dropout=0.3, layerdrop=0.5
    ),
    "phimoe": PhimoeConfig(
        **SIZES,
        num_local_experts=4,
        router_jitter_noise=0.1,
        input_jitter_noise=0.1,
        attention_dropout=0.3,
    ),
}


def logprobs(policy: Policy) -> torch.Tensor:
    [micro] = cut(make_batch(6), policy, max_tokens=1_000)
    found, _ = policy.logprobs(micro, temperature=1.0)
    return found


@pytest.mark.parametrize("kind", NOISY)
def test_gradient_checkpointing_changes_no_log_prob(kind, tmp_path, model_folder):
    policy = policy_of(tmp_path, NOISY[kind], model_folder)
    expected = logprobs(policy)
    policy.set_checkpointing(on=True)

    found = logprobs(policy)

    assert policy.model.is_activation_checkpointing
    assert torch.equal(found, expected)
    with policy.evaluating():
        assert not any(module.training for module in policy.model.modules())
    assert torch.equal(logprobs(policy), expected)


def test_a_model_that_checkpointing_changes_is_refused(
    tmp_path, model_folder, monkeypatch
):
    forward = GraniteDecoderLayer.forward

    def noisy(self: Any, *args: Any, **options: Any) -> torch.Tensor:
        found: torch.Tensor = forward(self, *args, **options)
        return found + 1e-3 * torch.rand_like(found) if self.training else found

    monkeypatch.setattr(GraniteDecoderLayer, "forward", noisy)

    with pytest.raises(ValueError, match=r"model\.gradient_checkpointing"):
        policy_of(tmp_path, OTHERS["granite"], model_folder, **CHECKPOINTING)
    policy_of(tmp_path, OTHERS["granite"], model_folder)


@pytest.mark.parametrize(
    "make",
    [
        lambda: BloomConfig(**SIZES, n_head=4, n_layer=2, attention_dropout=0.1),
        lambda: FalconConfig(**SIZES, alibi=True, attention_dropout=0.1),
    ],
    ids=["bloom", "falcon"],
)
def test_a_dropout_module_by_the_name_of_a_setting_stays_a_module(
    make, tmp_path, model_folder
):
    policy = policy_of(tmp_path, make(), model_folder)
    policy.model.train()

    assert torch.equal(logprobs(policy), logprobs(policy))


BOUNDED: dict[str, PreTrainedConfig] = {
    "gemma 2": Gemma2Config(
        **SIZES, **WINDOWS, head_dim=16, attn_logit_softcapping=None
    ),
    "nanochat": NanoChatConfig(**SIZES),
}


@pytest.mark.parametrize("kind", BOUNDED)
def test_log_probs_are_those_of_logits_that_the_model_bounds(
    kind, tmp_path, model_folder
):
    policy = policy_of(tmp_path, BOUNDED[kind], model_folder)
    policy.head.weight.data *= 6  # so that the bound shows
    [micro] = cut(make_batch(6), policy, max_tokens=1_000)
    with torch.no_grad():
        logits = policy.model(input_ids=micro.input_ids).logits
        rows = (logits / 0.7).log_softmax(dim=-1).flatten(0, 1)[micro.places]
        hidden = policy.hidden(micro)

    found, entropy = policy.logprobs(micro, temperature=0.7)

    expected = micro.spread(rows.gather(1, micro.targets[:, None]).squeeze(1))
    assert policy.logit_map.cap is not None
    assert logits.abs().max() > 0.8 * policy.logit_map.cap
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    drawn = micro.spread(-(rows.exp() * rows).sum(dim=-1))
    torch.testing.assert_close(entropy, drawn, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        policy.logits(hidden), logits.flatten(0, 1)[micro.places], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_that_bounds_its_logits_by_an_unknown_setting_is_refused(
    dtype, tmp_path, model_folder, monkeypatch
):
    monkeypatch.setattr(module, "_CAPS", ())

    with pytest.raises(ValueError, match="Gemma2ForCausalLM"):
        policy_of(tmp_path, BOUNDED["gemma 2"], model_folder, dtype=dtype)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError),
        (RuntimeError("can't allocate memory: you tried"), RuntimeError),
        (RuntimeError('"addmm" not implemented for Half'), ValueError),
    ],
)
def test_only_a_format_that_does_not_compute_is_refused_as_such(
    failure, expected, model_folder, monkeypatch
):
    def fail(_policy: Policy) -> None:
        raise failure

    monkeypatch.setattr(Policy, "check_split", fail)

    with pytest.raises(expected) as error:
        load_policy(ModelConfig(path=str(model_folder), device="cpu"))
    assert type(error.value) is expected


def config_of(kind: str, **settings: Any) -> PreTrainedConfig:
    return AutoConfig.for_model(kind, **(SIZES | settings))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_with_a_layer_before_its_head_is_refused(dtype, tmp_path, model_folder):
    config = config_of(
        "modernbert-decoder", cls_token_id=0, sep_token_id=1, pad_token_id=0
    )

    with pytest.raises(ValueError, match="ModernBertDecoder"):
        policy_of(tmp_path, config, model_folder, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("config", "form"),
    [
        (config_of("doge", keep_window_size=64), "padded"),  # a mask of its own
        (config_of("diffllama"), "packed"),  # two attentions a layer
        (config_of("mamba", state_size=8), "padded"),  # no heads
        (config_of("llama4_text", head_dim=16, intermediate_size_mlp=48), "padded"),
        (
            config_of(
                "gemma4_text",
                head_dim=16,
                global_head_dim=32,
                sliding_window=4,
                layer_types=["sliding_attention"] * 2 + ["full_attention"],
                hidden_size_per_layer_input=8,
                vocab_size_per_layer_input=36,
            ),
            "packed",
        ),
    ],
    ids=["doge", "diffllama", "mamba", "llama 4", "gemma 4"],
)
def test_a_model_is_packed_only_where_each_layer_attends_as_a_row_does(
    config, form, dtype, tmp_path, model_folder
):
    policy = policy_of(tmp_path, config, model_folder, dtype=dtype)

    assert policy.form == form
    assert policy.slowed == ""


def test_attention_refuses_a_mask_and_an_option_that_it_does_not_know():
    layer, states = torch.nn.Module(), torch.zeros(1, 2, 3, 8)
    inputs = layer, states, states, states
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    layout: Any = object()  # not reached

    with pytest.raises(ValueError, match="mask"):
        kernels._attend(*inputs, mask.expand(1, 1, 3, 3), layout=layout)
    with pytest.raises(ValueError, match="indices"):
        kernels._attend(*inputs, mask, layout=layout, indices=states)


@pytest.mark.parametrize("kernel", ["blocks", "varlen"])
def test_values_of_another_size_than_the_queries_are_packed(
    kernel, tmp_path, model_folder, monkeypatch
):
    config = config_of(
        "minicpm3",
        num_key_value_heads=4,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=12,
    )
    monkeypatch.setattr(attention, "varlen_attention", reference)
    policy = policy_of(tmp_path, config, model_folder)
    assert policy.form == "packed"
    policy.is_varlen = kernel == "varlen"

    check(policy, "shared prompts")


def test_a_kernel_without_a_gradient_is_left(tmp_path, model_folder, monkeypatch):
    policy = policy_of(tmp_path, OTHERS["granite"], model_folder)
    monkeypatch.setattr(module, "takes_varlen", lambda *_: True)

    def only_forward(*inputs: Any, **options: Any) -> torch.Tensor:
        return reference(*inputs, **options).detach()

    monkeypatch.setattr(attention, "varlen_attention", only_forward)

    assert "FlashAttention" in policy.choose_form()
    assert (policy.form, policy.is_varlen) == ("packed", False)
