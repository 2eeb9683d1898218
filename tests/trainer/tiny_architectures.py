"""A tiny configuration of each architecture, with all that is peculiar to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import AutoConfig

LONGEST = 64  # tokens of a run's longest sequence

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
WINDOW = {"sliding_window": 8}
HEAD = {"head_dim": 16}
EXPERTS = {
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
MAMBA = {
    "mamba_d_state": 8,
    "mamba_d_head": 16,
    "mamba_n_heads": 4,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
    "mamba_expand": 2,
}
DELTA = {
    **HEAD,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
}


def rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **settings}}


@dataclass(frozen=True)
class Architecture:
    kind: str  # transformers' model_type
    settings: Mapping[str, Any] = field(default_factory=dict)
    nested: bool = False  # the sizes are those of its text_config
    attention: str = "eager"  # of transformers' that is right

    @property
    def is_rotated_by_length(self) -> bool:
        rope = self.settings.get("rope_parameters", {})
        return rope.get("rope_type") in ("dynamic", "longrope")

    def config(self) -> Any:
        if self.nested:
            own = {key: dict(value) for key, value in self.settings.items()}
            text = SIZES | own.pop("text_config", {})
            return AutoConfig.for_model(self.kind, text_config=text, **own)
        return AutoConfig.for_model(self.kind, **(SIZES | dict(self.settings)))


def plain(kind: str, *groups: Mapping[str, Any], **settings: Any) -> Architecture:
    merged: dict[str, Any] = {}
    for group in (*groups, settings):
        merged |= group
    return Architecture(kind, merged)


LONGROPE = rope(
    "longrope",
    short_factor=[1.0, 1.1, 1.2, 1.3],
    long_factor=[1.0, 2.0, 4.0, 8.0],
    original_max_position_embeddings=16,
    factor=4.0,
)
PER_LAYER = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 40}
GEMMA_4 = {
    **PER_LAYER,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_kv_shared_layers": 0,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}

ARCHITECTURES: dict[str, Architecture] = {
    "Llama": plain("llama"),
    "Llama (tied embeddings)": plain("llama", tie_word_embeddings=True),
    "Llama (biases)": plain("llama", attention_bias=True, mlp_bias=True),
    "Llama 3": plain(
        "llama",
        rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=16,
        ),
    ),
    "Llama (linear RoPE)": plain("llama", rope("linear", factor=4.0)),
    "Llama (YaRN)": plain(
        "llama", rope("yarn", factor=4.0, original_max_position_embeddings=16)
    ),
    "Llama (dynamic RoPE)": plain(
        "llama", rope("dynamic", factor=4.0), max_position_embeddings=16
    ),
    "Mistral": plain("mistral", sliding_window=None),
    "Mistral (windows)": plain("mistral", WINDOW),
    "Qwen2": plain("qwen2", tie_word_embeddings=True),
    "Qwen2 (windows)": plain(
        "qwen2", WINDOW, use_sliding_window=True, max_window_layers=1
    ),
    "Qwen3": plain("qwen3", HEAD),
    "Qwen3 (windows)": plain(
        "qwen3", HEAD, WINDOW, use_sliding_window=True, max_window_layers=1
    ),
    "Phi": plain("phi"),
    "Phi 3": plain("phi3"),
    "Phi 3 (long context)": plain(
        "phi3", LONGROPE, original_max_position_embeddings=16
    ),
    "Phi 3.5 MoE": plain(
        "phimoe", EXPERTS, router_jitter_noise=0.1, input_jitter_noise=0.1
    ),
    "GPT-NeoX (Pythia)": plain("gpt_neox"),
    "GLM 4": plain("glm", HEAD),
    "GLM 4-0414": plain("glm4", HEAD),
    "GLM 4.5": plain("glm4_moe", EXPERTS, HEAD),
    "GLM 4.7 Flash": plain("glm4_moe_lite", EXPERTS, MLA),
    "SmolLM3": plain("smollm3", num_hidden_layers=4),
    "Ministral": plain("ministral", WINDOW, HEAD),
    "Ministral 3": plain("ministral3", HEAD),
    "StarCoder2": plain("starcoder2", WINDOW),
    "Gemma": plain("gemma", HEAD),
    "Gemma 2": plain("gemma2", HEAD, WINDOW, query_pre_attn_scalar=16),
    "Gemma 2 (no attention softcap)": plain(
        "gemma2", HEAD, WINDOW, attn_logit_softcapping=None, query_pre_attn_scalar=16
    ),
    "Gemma 2 (no final softcap)": plain(
        "gemma2", HEAD, WINDOW, final_logit_softcapping=None, query_pre_attn_scalar=16
    ),
    "Gemma 3": plain(
        "gemma3_text",
        HEAD,
        WINDOW,
        query_pre_attn_scalar=16,
        num_hidden_layers=3,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    ),
    "Gemma 3 (with pictures)": Architecture(
        "gemma3",
        {
            "text_config": {**HEAD, **WINDOW, "query_pre_attn_scalar": 16},
            "vision_config": VISION,
        },
        nested=True,
    ),
    "Gemma 3n": plain(
        "gemma3n_text",
        HEAD,
        WINDOW,
        PER_LAYER,
        num_hidden_layers=3,
        num_kv_shared_layers=0,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        laurel_rank=4,
        activation_sparsity_pattern=[0.5, 0.0, 0.0],
    ),
    "Gemma 3n (shared keys)": plain(
        "gemma3n_text",
        HEAD,
        WINDOW,
        PER_LAYER,
        num_hidden_layers=4,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
        laurel_rank=4,
        activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0],
    ),
    "Gemma 4": plain("gemma4_text", HEAD, WINDOW, GEMMA_4, global_head_dim=16),
    "Gemma 4 (two head sizes)": plain(
        "gemma4_text", HEAD, WINDOW, GEMMA_4, global_head_dim=32
    ),
    "VaultGemma": plain("vaultgemma", HEAD, WINDOW, query_pre_attn_scalar=16),
    "RecurrentGemma": plain("recurrent_gemma", attention_window_size=8, lru_width=32),
    "OLMo": plain("olmo", clip_qkv=1.0),
    "OLMo 2": plain("olmo2"),
    "OLMo 3": plain("olmo3", WINDOW),
    "OLMo Hybrid": plain(
        "olmo_hybrid", {k: v for k, v in DELTA.items() if k != "head_dim"}
    ),
    "OLMoE": plain("olmoe", EXPERTS),
    "FlexOLMo": plain("flex_olmo", EXPERTS),
    "Command R": plain("cohere", logit_scale=0.25),
    "Command R7B": plain("cohere2", WINDOW, logit_scale=0.25),
    "EXAONE 4": plain(
        "exaone4", WINDOW, layer_types=["sliding_attention", "full_attention"]
    ),
    "EXAONE MoE": plain("exaone_moe", EXPERTS, WINDOW),
    "AFMoE": plain("afmoe", EXPERTS, HEAD, WINDOW),
    "Granite": plain(
        "granite",
        logits_scaling=4.0,
        residual_multiplier=0.5,
        embedding_multiplier=2.0,
        attention_multiplier=0.3,
    ),
    "Granite MoE": plain("granitemoe", EXPERTS, logits_scaling=4.0),
    "Granite MoE (shared experts)": plain("granitemoeshared", EXPERTS),
    "Granite 4": plain(
        "granitemoehybrid", EXPERTS, MAMBA, layer_types=["mamba", "attention"]
    ),
    "Mixtral": plain("mixtral", EXPERTS),
    "Qwen2 MoE": plain("qwen2_moe", EXPERTS),
    "Qwen3 MoE": plain("qwen3_moe", EXPERTS, HEAD),
    "Qwen3-Next": plain("qwen3_next", EXPERTS, DELTA),
    "Qwen3.5": plain("qwen3_5_text", DELTA),
    "Qwen3.5 MoE": plain("qwen3_5_moe_text", EXPERTS, DELTA),
    "Qwen3.5 (with pictures)": Architecture(
        "qwen3_5",
        {
            "text_config": DELTA,
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 32,
                "depth": 1,
                "num_heads": 2,
                "out_hidden_size": 32,
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [],
            },
        },
        nested=True,
    ),
    "Qwen2.5-VL": Architecture(
        "qwen2_5_vl",
        {
            "text_config": rope("default", mrope_section=[1, 1, 2]),
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 32,
                "depth": 1,
                "num_heads": 2,
                "out_hidden_size": 32,
            },
        },
        nested=True,
    ),
    "dots.llm1": plain("dots1", EXPERTS, WINDOW, HEAD),
    "ERNIE 4.5": plain("ernie4_5", HEAD),
    "ERNIE 4.5 MoE": plain(
        "ernie4_5_moe",
        HEAD,
        EXPERTS,
        moe_num_experts=4,
        moe_k=2,
        moe_num_shared_experts=1,
    ),
    "GPT-2": plain("gpt2"),
    "GPT-1": plain("openai-gpt"),
    "GPTBigCode": plain("gpt_bigcode"),
    "GPT-J": plain("gptj", rotary_dim=4),
    "GPT-Neo (TinyStories)": plain(
        "gpt_neo",
        num_layers=2,
        attention_types=[[["global", "local"], 1]],
        window_size=8,
        intermediate_size=48,
    ),
    "GPT-OSS": plain("gpt_oss", EXPERTS, HEAD, WINDOW),
    "CodeGen": plain("codegen", rotary_dim=4),
    "MPT": plain("mpt", d_model=32, n_heads=4, n_layers=2, max_seq_len=256),
    "BLOOM": plain("bloom", n_layer=2, n_head=4),
    # transformers' eager attention adds the positions' bias twice
    "Falcon (ALiBi)": Architecture("falcon", {"alibi": True}, attention="sdpa"),
    "Falcon (RoPE)": plain("falcon", alibi=False, parallel_attn=True, multi_query=True),
    "Falcon (new decoder)": plain(
        "falcon", alibi=False, new_decoder_architecture=True, num_kv_heads=2
    ),
    "Falcon-H1": plain("falcon_h1", MAMBA, HEAD, mamba_d_ssm=64),
    "Falcon Mamba": plain("falcon_mamba", state_size=8),
    "OPT": plain("opt", ffn_dim=48, word_embed_proj_dim=32),
    "XGLM": plain("xglm", d_model=32, ffn_dim=48, num_layers=2, attention_heads=4),
    "BioGPT": plain("biogpt"),
    "StableLM": plain("stablelm"),
    "Nemotron": plain("nemotron"),
    "Nemotron-H": plain(
        "nemotron_h",
        EXPERTS,
        mamba_num_heads=4,
        mamba_head_dim=16,
        n_groups=1,
        ssm_state_size=8,
        chunk_size=8,
        head_dim=8,
        num_hidden_layers=3,
        layers_block_type=["mamba", "attention", "mlp"],
        hybrid_override_pattern="M*-",
    ),
    "Persimmon": plain("persimmon"),
    "DeepSeek V2": plain("deepseek_v2", EXPERTS, MLA, head_dim=8),
    "DeepSeek V3": plain("deepseek_v3", EXPERTS, MLA, head_dim=8),
    "DeepSeek V3.2": plain(
        "deepseek_v32", EXPERTS, MLA, index_n_heads=16, index_head_dim=16, index_topk=12
    ),
    "MiniCPM3": plain("minicpm3", MLA),
    "Youtu": plain("youtu", MLA),
    "LongCat Flash": plain(
        "longcat_flash",
        EXPERTS,
        MLA,
        head_dim=8,
        ffn_hidden_size=48,
        expert_ffn_hidden_size=16,
        moe_topk=2,
        zero_expert_num=2,
        num_layers=2,
    ),
    "Kimi Linear": plain(
        "kimi_linear",
        EXPERTS,
        MLA,
        linear_num_heads=4,
        linear_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
    ),
    "BitNet": plain("bitnet"),
    "Apertus": plain("apertus"),
    "Arcee": plain("arcee"),
    "Helium": plain("helium", head_dim=8),
    "HunYuan": plain("hunyuan_v1_dense", HEAD),
    "HunYuan MoE": plain("hunyuan_v1_moe", HEAD, EXPERTS, moe_topk=2),
    "DiffLlama": plain("diffllama"),
    "Doge": plain("doge", keep_window_size=64),
    "Doge with long texts": plain("doge", keep_window_size=12),
    "NanoChat": plain("nanochat"),
    "Seed-OSS": plain("seed_oss", HEAD),
    "CWM": plain("cwm", WINDOW, HEAD, bos_token_id=0),
    "Jais 2": plain("jais2"),
    "HyperCLOVA X": plain("hyperclovax"),
    "InternLM3": plain("internlm3", HEAD),
    "Solar Open": plain("solar_open", EXPERTS, HEAD),
    "MiniMax": plain(
        "minimax",
        HEAD,
        EXPERTS,
        block_size=8,
        layer_types=["linear_attention", "full_attention"],
    ),
    "MiniMax M2": plain("minimax_m2", EXPERTS, HEAD),
    "MiMo V2 Flash": plain(
        "mimo_v2_flash",
        EXPERTS,
        WINDOW,
        HEAD,
        v_head_dim=16,
    ),
    "DBRX": plain(
        "dbrx",
        d_model=32,
        n_heads=4,
        n_layers=2,
        max_seq_len=256,
        attn_config={"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        ffn_config={
            "ffn_hidden_size": 48,
            "moe_num_experts": 4,
            "moe_top_k": 2,
            "hidden_size": 32,
        },
    ),
    "JetMoE": plain("jetmoe", EXPERTS, kv_channels=16),
    "Llama 4": plain("llama4_text", EXPERTS, HEAD, intermediate_size_mlp=48),
    "ModernBERT decoder": plain(
        "modernbert-decoder", bos_token_id=0, cls_token_id=0, sep_token_id=1
    ),
    "Mamba": plain("mamba", state_size=8),
    "Mamba 2": plain(
        "mamba2", num_heads=4, head_dim=16, state_size=8, n_groups=1, chunk_size=8
    ),
    "Jamba": plain(
        "jamba",
        EXPERTS,
        attn_layer_period=2,
        attn_layer_offset=1,
        mamba_d_state=8,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "Bamba": plain("bamba", MAMBA, attn_layer_indices=[1]),
    "Zamba2": plain(
        "zamba2",
        mamba_d_state=8,
        mamba_ngroups=1,
        n_mamba_heads=4,
        chunk_size=8,
        num_hidden_layers=3,
        layer_types=["mamba", "hybrid", "mamba"],
        layers_block_type=["mamba", "hybrid", "mamba"],
        num_mem_blocks=1,
        adapter_rank=4,
    ),
    "LFM2": plain("lfm2", layer_types=["conv", "full_attention"], block_multiple_of=16),
    "LFM2 MoE": plain(
        "lfm2_moe", EXPERTS, layer_types=["conv", "full_attention"], num_dense_layers=1
    ),
    "LFM3": plain(
        "lfm3",
        WINDOW,
        HEAD,
        num_hidden_layers=3,
        layer_types=["conv", "sliding_attention", "full_attention"],
    ),
    "RWKV": plain("rwkv"),
    "xLSTM": plain("xlstm", embedding_dim=32, num_heads=2, num_blocks=2, chunk_size=8),
}
