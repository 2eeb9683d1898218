"""Which settings of a part stand together on the launch form, under which title."""

from __future__ import annotations

# The main settings stand above the parts and are not named here.
GROUPS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "model": (
        ("Weights", ("dtype", "device", "tf32", "revision", "gradient_checkpointing")),
        ("Adapters", ("lora_rank", "lora_alpha", "lora_targets", "quantization")),
    ),
    "rollout": (
        (
            "Sampling",
            (
                "source",
                "one_step_off",
                "top_p",
                "top_k",
                "logprob_temperature",
                "max_batch_rows",
            ),
        ),
        (
            "Engine",
            (
                "engine",
                "decoding",
                "cache_gib",
                "tensor_parallel_size",
                "sleep",
                "url",
                "token_file",
            ),
        ),
        ("Groups without a signal", ("dynamic_sampling", "max_refills")),
    ),
    "reward": (
        ("Overlong completions", ("overlong_buffer_tokens", "overlong_penalty")),
        ("Reasoning steps", ("step_pattern", "step_boundary")),
        ("Where it is computed", ("num_workers", "max_error_share")),
    ),
    "advantage": (
        (
            "Within a group",
            ("baseline", "scale", "ddof", "eps", "combine", "singleton", "whiten"),
        ),
        ("Credit of a token", ("credit", "indicator_threshold", "preference_beta")),
    ),
    "loss": (
        (
            "Ratio and clipping",
            ("surrogate", "clip_low", "clip_high", "dual_clip", "old_logprobs"),
        ),
        (
            "Sampling that differs from training",
            ("importance_correction", "importance_cap"),
        ),
        (
            "Tokens that count",
            (
                "aggregation",
                "constant_length",
                "mask_truncated",
                "mask_end_token",
                "include_prompt",
            ),
        ),
        (
            "Distance to the reference",
            (
                "kl_estimator",
                "kl_ratio",
                "kl_in",
                "kl_aggregation",
                "kl_clamp",
                "kl_target",
                "kl_horizon",
            ),
        ),
        ("Entropy", ("entropy_coef",)),
    ),
    "reference": (
        (
            "Which model",
            ("kind", "url", "token_file"),
        ),
        (
            "A reference that moves",
            ("reset_every_steps", "mix_every_steps", "mix_alpha"),
        ),
    ),
    "optim": (
        ("AdamW", ("optimizer", "beta1", "beta2", "weight_decay", "max_grad_norm")),
        ("Learning rate", ("schedule", "warmup_steps", "final_lr_fraction")),
        ("Updates", ("updates_per_batch", "minibatches", "micro_batch_tokens")),
        ("Faults and resets", ("reset_every_steps", "max_nonfinite")),
    ),
}
