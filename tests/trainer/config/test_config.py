"""What a run's loop cannot honour is refused, never ignored."""

from typing import Any

import pytest

from trainer.config import RunConfig, read_config


def tree(**parts: Any) -> dict[str, Any]:
    rule = {"name": "length", "kind": "length", "params": {}}
    return {
        "model": {"path": "m"},
        "data": {"rows": "r"},
        "reward": {"recipe": {"rules": [rule]}},
    } | parts


RULE = {"rules": [{"name": "length", "kind": "length"}]}
OVERLONG = {"recipe": {"rules": [{"name": "overlong", "kind": "length"}]}}
STEPS = OVERLONG | {
    "step_recipe": {"rules": [{"name": "step", "kind": "length", "weight": -2}]}
}


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"distributed": {"num_nodes": 2}}, "num_nodes is 2"),
        (
            {"distributed": {"where": "ray", "num_nodes": 5, "num_processes": 205}},
            "is 1,025",
        ),
        (
            {
                "distributed": {"where": "ray", "num_nodes": 2},
                "rollout": {"engine": "vllm", "tensor_parallel_size": 2},
            },
            "got 2 with 2 processes",
        ),
        (
            {"curriculum": {"kind": "pools"}, "rollout": {"source": "dataset"}},
            'rollout.source = "dataset"',
        ),
        (
            {
                "curriculum": {"kind": "learnability"},
                "rollout": {"group_size": 1},
                "advantage": {"baseline": "none"},
            },
            'Use "variance"',
        ),
        ({"curriculum": {"pool_bounds": [0.8, 0.2]}}, "must rise"),
        ({"advantage": {"credit": "process"}}, "each reasoning step"),
        (
            {"loss": {"kl_estimator": "full", "kl_coef": 0.1, "kl_in": "reward"}},
            "no gradient",
        ),
        (
            {
                "loss": {"kl_estimator": "full"},
                "reference": {
                    "kind": "server",
                    "url": "http://127.0.0.1:1",
                    "token_file": "t",
                },
            },
            "whole vocabulary",
        ),
        ({"loss": {"kl_ratio": True, "kl_in": "reward"}}, "kl_ratio"),
        ({"loss": {"kl_ratio": True, "kl_estimator": "k1+"}}, "kl_ratio"),
        ({"loss": {"kl_ratio": True, "kl_estimator": "full"}}, "kl_ratio"),
        ({"loss": {"kl_target": 1.0}}, "initial KL weight"),
        ({"reference": {"kind": "base"}}, "LoRA adapters"),
        ({"reference": {"kind": "server"}}, "requires reference.url"),
        (
            {"reference": {"kind": "server", "url": "http://127.0.0.1:1"}},
            "reference.token_file",
        ),
        (
            {
                "reference": {"reset_every_steps": 5},
                "model": {"path": "m", "lora_rank": 4},
            },
            "reset_every_steps",
        ),
        ({"model": {"path": "m", "quantization": "4bit"}}, "cannot be trained"),
        ({"rollout": {"group_size": 1}}, "group_size"),
        ({"optim": {"minibatches": 17}}, "17 minibatches"),
        ({"advantage": {"credit": "preference"}}, "gradient coefficient"),
        ({"loss": {"surrogate": "dppo_tv"}}, "loss.old_logprobs"),
        *(
            (
                {
                    "advantage": {"credit": "preference"},
                    "loss": {"surrogate": "reinforce", name: value},
                },
                f"loss.{name} would change one of a pair",
            )
            for name, value in (
                ("geometric_mask", 0.1),
                ("off_policy_mask", 0.1),
                ("sampler_penalty", 0.1),
                ("top_entropy_share", 0.2),
            )
        ),
        (
            {
                "rollout": {"top_p": 0.9},
                "loss": {"surrogate": "dppo_tv", "old_logprobs": "sampling"},
            },
            'loss.surrogate = "dppo_tv" compares',
        ),
        (
            {
                "loss": {
                    "surrogate": "dppo_kl",
                    "old_logprobs": "sampling",
                    "importance_correction": "token_mask",
                }
            },
            "Remove loss.importance_correction",
        ),
        (
            {"rollout": {"top_p": 0.9}, "loss": {"off_policy_mask": 0.5}},
            "top_p = 0.9, which their log-probs leave out, but loss.off_policy_mask",
        ),
        ({"loss": {"include_prompt": True, "sampler_penalty": 0.1}}, "include_prompt"),
        (
            {"rollout": {"top_p": 0.9}, "loss": {"old_logprobs": "sampling"}},
            "top_p = 0.9",
        ),
        (
            {
                "rollout": {"min_p": 0.1, "repetition_penalty": 1.2},
                "loss": {"importance_correction": "token_mask"},
            },
            "min_p = 0.1, repetition_penalty = 1.2",
        ),
        ({"data": {"chat_template_kwargs": {"tokenize": True}}}, "tokenize: set by"),
        ({"rollout": {"stop": [""]}}, "at least 1 character"),
        (
            {"loss": {"include_prompt": True, "importance_correction": "token_mask"}},
            "loss.include_prompt",
        ),
        (
            {
                "rollout": {"logprob_temperature": 1.0, "temperature": 0.9},
                "loss": {"old_logprobs": "sampling"},
            },
            "log-probs at 0.9",
        ),
        (
            {
                "rollout": {"logprob_temperature": 1.0, "temperature": 0.9},
                "loss": {"kl_in": "reward", "kl_coef": 0.1},
            },
            "log-probs at 0.9",
        ),
        (
            {
                "advantage": {"credit": "process", "combine": "normalize_then_sum"},
                "reward": STEPS,
            },
            "compares steps",
        ),
        (
            {"advantage": {"credit": "process", "scale": "mean"}, "reward": STEPS},
            "can give -2",
        ),
        ({"advantage": {"credit": "ones", "whiten": True}}, "advantage.whiten"),
        (
            {"advantage": {"credit": "process", "baseline": "length_weighted"}}
            | {"reward": STEPS},
            "length_weighted",
        ),
        (
            {"advantage": {"credit": "pass_at_k", "pass_k": 9}},
            "pass_k is 9, but a group has 8",
        ),
        (
            {"advantage": {"credit": "pass_at_k_analytic", "pass_k": 8}},
            "one of 8 is the whole group",
        ),
        (
            {"advantage": {"credit": "pass_at_k", "combine": "normalize_then_sum"}},
            "compares subsets",
        ),
        ({"advantage": {"weight": 0}}, "weight = 0"),
        (
            {
                "advantage": {"weight": 0},
                "loss": {"kl_in": "reward", "kl_coef": 0.1},
            },
            "weight = 0",
        ),
        (
            {
                "advantage": {"weight": 0.5, "credit": "preference"},
                "loss": {"surrogate": "reinforce"},
            },
            "weight = 0.5",
        ),
        (
            {"reward": OVERLONG | {"overlong_buffer_tokens": 9}},
            "Rename the rule",
        ),
        (
            {
                "reward": {"recipe": RULE, "overlong_buffer_tokens": 17},
                "rollout": {"max_new_tokens": 16},
            },
            "at most 16 tokens",
        ),
        (
            {
                "loss": {"kl_in": "reward", "kl_coef": 0.1},
                "rollout": {"source": "start"},
            },
            "the starting model",
        ),
        ({"reward": OVERLONG | {"step_pattern": "(?=a)"}}, "RE2"),
        ({"evaluation": {"sets": {"AIME-24": "a"}}}, "held-out set"),
        ({"evaluation": {"sets": {"heldout": "a"}}}, "held-out set"),
        ({"evaluation": {"sets": {"aime": ""}}}, "has no file"),
        ({"rollout": {"source": "dataset"}}, 'credit = "ones"'),
        (
            {
                "rollout": {"source": "dataset", "group_size": 2},
                "advantage": {"credit": "ones"},
            },
            "one completion per row",
        ),
        (
            {
                "loss": {"kl_in": "reward", "kl_coef": 0.1},
                "advantage": {"combine": "normalize_then_sum"},
            },
            "never sums rewards",
        ),
        (
            {
                "loss": {"kl_in": "reward", "kl_coef": 0.1},
                "advantage": {"scale": "mean"},
            },
            "must not be negative",
        ),
        (
            {
                "loss": {"kl_in": "reward", "kl_coef": 0.1},
                "advantage": {"credit": "ones"},
            },
            "has no effect",
        ),
        (
            {"loss": {"kl_coef": 0.1}, "reference": {"kind": "none"}},
            "loss.kl_coef = 0.1",
        ),
        ({"optim": {"num_steps": 5, "warmup_steps": 5}}, "warmup_steps is 5"),
        (
            {"loss": {"surrogate": "gspo", "top_entropy_share": 0.2}},
            "one ratio per sequence",
        ),
        ({"loss": {"surrogate": "gmpo", "covariance": "clip"}}, "one ratio per seq"),
        ({"loss": {"surrogate": "sapo", "covariance": "kl"}}, 'is "sapo"'),
        (
            {"loss": {"covariance": "clip"}, "advantage": {"credit": "ones"}},
            '"ones" gives none',
        ),
        (
            {"loss": {"covariance": "clip", "covariance_low": 5.0}},
            "covariance_low is 5",
        ),
        ({"loss": {"covariance": "kl", "include_prompt": True}}, "no sampling"),
        (
            {"loss": {"covariance": "kl"}, "rollout": {"logprob_temperature": 0.5}},
            "at temperature 0.5",
        ),
        ({"loss": {"entropy_target": 0.2, "entropy_coef": 2.0}}, "entropy_coef is 2"),
    ],
)
def test_settings_that_contradict_are_refused(parts, complaint):
    with pytest.raises(ValueError, match=complaint):
        RunConfig.model_validate(tree(**parts))


def test_mean_scale_needs_a_recipe_that_is_never_negative():
    rule = {"name": "length", "kind": "length", "weight": -1.0, "params": {}}

    with pytest.raises(ValueError, match="give -1"):
        RunConfig.model_validate(
            tree(reward={"recipe": {"rules": [rule]}}, advantage={"scale": "mean"})
        )


def test_a_constant_divisor_is_the_longest_completion_by_default():
    config = RunConfig.model_validate(tree(rollout={"max_new_tokens": 77}))

    assert config.loss_of_run.constant_length == 77


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("run.toml", "[model\n", "is not valid TOML"),
        ("run.json", "{", "is not valid JSON"),
        ("run.toml", "[model]\npath = 'm'\n", "data: Field required"),
    ],
)
def test_a_file_that_cannot_be_read_is_reported(tmp_path, name, text, complaint):
    path = tmp_path / name
    path.write_text(text)

    with pytest.raises(ValueError, match=complaint):
        read_config(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"run\.toml"):
        read_config(tmp_path / "run.toml")


@pytest.mark.parametrize(
    ("older", "now"),
    [(True, "completions"), (False, "no"), ("on", "completions"), ("off", "no")],
)
def test_whitening_of_older_versions_is_read(older, now):
    phases = [
        {"name": "a", "num_steps": 2, "changes": {"advantage": {"whiten": older}}},
        {"name": "b", "num_steps": 3},
    ]
    config = RunConfig.model_validate(tree(advantage={"whiten": older}))
    phased = RunConfig.model_validate(tree(optim={"num_steps": 5}, phases=phases))

    assert config.advantage.whiten == now
    assert phased.phases[0].changes == {"advantage": {"whiten": now}}
    assert [p.config.advantage.whiten for p in phased.phase_configs] == [now, "no"]


def test_a_weight_of_0_leaves_the_kl():
    config = RunConfig.model_validate(
        tree(advantage={"weight": 0}, loss={"kl_coef": 0.1})
    )

    assert config.advantage.weight == 0


SFT = {
    "name": "sft",
    "num_steps": 2,
    "changes": {
        "rollout": {"source": "dataset", "group_size": 1},
        "advantage": {"credit": "ones"},
    },
}


def test_phases_follow_one_another_with_their_own_settings():
    grpo = {"name": "grpo", "num_steps": 3}

    config = RunConfig.model_validate(
        tree(optim={"num_steps": 5, "learning_rate": 1e-3}, phases=[SFT, grpo])
    )

    first, second = config.phase_configs
    assert (first.name, first.first_step, first.last_step) == ("sft", 1, 2)
    assert (second.name, second.first_step, second.last_step) == ("grpo", 3, 5)
    assert first.config.rollout.source == "dataset"
    assert second.config.rollout.source == "policy"
    assert first.config.optim.learning_rate == second.config.optim.learning_rate == 1e-3


def test_weights_in_4_bits_are_no_start_of_a_later_phase():
    later = {"name": "rft", "num_steps": 3, "changes": {"rollout": {"source": "start"}}}
    parts: dict[str, Any] = {"optim": {"num_steps": 5}}
    parts["model"] = {"path": "m", "lora_rank": 4, "quantization": "4bit"}

    with pytest.raises(ValueError, match='"rft" samples'):
        RunConfig.model_validate(tree(**parts, phases=[SFT, later]))


def test_a_run_without_phases_is_one_stage():
    config = RunConfig.model_validate(tree(optim={"num_steps": 5}))

    assert [(s.first_step, s.last_step) for s in config.phase_configs] == [(1, 5)]


@pytest.mark.parametrize(
    ("phase", "complaint"),
    [
        ({"name": "a", "num_steps": 4}, "4 steps in total"),
        ({"name": "a", "num_steps": 5, "changes": {"model": {}}}, "cannot change"),
        (
            {"name": "a", "num_steps": 5, "changes": {"optim": {"num_steps": 5}}},
            "changes.optim",
        ),
        (
            {"name": "a", "num_steps": 5, "changes": {"optim": {"warmup_steps": 5}}},
            'Phase "a".*warmup_steps is 5',
        ),
        (
            {"name": "a", "num_steps": 5, "changes": {"loss": {"clip_lo": 0.1}}},
            'Phase "a", loss.clip_lo',
        ),
    ],
)
def test_a_phase_that_does_not_fit_is_refused(phase, complaint):
    with pytest.raises(ValueError, match=complaint):
        RunConfig.model_validate(tree(optim={"num_steps": 5}, phases=[phase]))


def test_the_text_none_reads_as_an_empty_value():
    found = RunConfig.model_validate(
        tree(loss={"dual_clip": "none"}, reference={"kind": "none", "url": "none"})
    )

    assert found.loss.dual_clip is None
    assert found.reference.kind == "none"
    assert found.reference.url is None
    with pytest.raises(ValueError, match="clip_low"):
        RunConfig.model_validate(tree(loss={"clip_low": "none"}))


def test_a_penalty_is_enough_to_train_on_without_advantages():
    config = RunConfig.model_validate(
        tree(advantage={"weight": 0}, loss={"sampler_penalty": 0.1})
    )

    assert config.advantage.weight == 0
