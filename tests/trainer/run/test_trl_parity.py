"""The same completions, rewards and settings give TRL's loss and TRL's gradient.

TRL scores, compares and differentiates through its own GRPOTrainer; only sampling is
replaced, by completions both sides are given. Reference, sampling policy and trained
policy are three different sets of weights, so that ratio and KL are not trivial. They
are float64, so that what is left of a difference is not rounding but meaning; only
advantages and TRL's rewards stay float32.
"""

import itertools
import logging
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.algorithm.advantages import group_advantages, reward_matrix
from trainer.algorithm.loss import objective
from trainer.config import AdvantageConfig, LossConfig, ModelConfig
from trainer.data import Prompt, Row
from trainer.model.packing import batch_of, set_advantages
from trainer.model.policy import Policy, load_policy
from trainer.rewards.scoring import Score
from trainer.types import Group, Rollout

pytestmark = [
    # TRL still calls what transformers has given other names
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func'"),
]

TEMPERATURE = 0.8
GROUP_SIZE = 4
MAX_NEW = 12
EOS = 1


@dataclass(frozen=True)
class Sampled:
    """Three groups: one with a tie, one with a completion that no rule could score."""

    prompt_ids: list[tuple[int, ...]]  # of each completion
    completion_ids: list[tuple[int, ...]]
    sampling_logprobs: list[tuple[float, ...]]
    rewards: list[float | None]


@cache
def sampled(folder: Path) -> Sampled:
    rng = random.Random(5)
    engine = load_policy(ModelConfig(path=str(folder), device="cpu"))
    move(engine.model, 1)  # the weights that it samples with

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(2, 36) for _ in range(count))

    prompts, completions = [], []
    for length in (3, 7, 5):
        prompt = ids(length)
        for index in range(GROUP_SIZE):
            prompts.append(prompt)
            is_cut = index == 2
            completions.append(
                ids(MAX_NEW) if is_cut else (*ids(rng.randint(1, 9)), EOS)
            )
    return Sampled(
        prompt_ids=prompts,
        completion_ids=completions,
        sampling_logprobs=[
            tuple(exact + rng.uniform(-0.6, 0.6) for exact in logprobs_of(engine, *ids))
            for ids in zip(prompts, completions, strict=True)
        ],
        rewards=[1, 0, 0.5, 0, 2, 2, 0, 1.1, 0.3, None, -1, 0.9],
    )


def move(model: torch.nn.Module, seed: int) -> None:
    """Move the weights as an update would, by the same noise in any copy."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)


def logprobs_of(
    policy: Policy, prompt_ids: tuple[int, ...], completion_ids: tuple[int, ...]
) -> list[float]:
    ids = torch.tensor([[*prompt_ids, *completion_ids]])
    with torch.no_grad():
        every = (policy.model(input_ids=ids).logits[0] / TEMPERATURE).log_softmax(-1)
    first = len(prompt_ids)
    return [
        every[first + t - 1, token].item() for t, token in enumerate(completion_ids)
    ]


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def theirs(
    folder: Path, out: Path, options: dict[str, Any]
) -> tuple[torch.Tensor, float, dict[str, torch.Tensor]]:
    """Advantages, loss and gradient as TRL computes them."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    logging.getLogger("trl").setLevel(logging.ERROR)
    data = sampled(folder)
    uses_engine = "vllm_importance_sampling_mode" in options
    trainer = GRPOTrainer(
        model=str(folder),
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=lambda completions, reward, **_: reward,
        train_dataset=Dataset.from_list([{"prompt": "1", "reward": 0.0}]),
        rollout_func=lambda prompts, trainer: {
            "prompt_ids": [list(ids) for ids in data.prompt_ids],
            "completion_ids": [list(ids) for ids in data.completion_ids],
            "logprobs": [list(each) for each in data.sampling_logprobs],
        },
        args=GRPOConfig(
            output_dir=str(out),
            per_device_train_batch_size=len(data.rewards),
            num_generations=GROUP_SIZE,
            max_completion_length=MAX_NEW,
            temperature=TEMPERATURE,
            num_iterations=2,  # so that log-probs before the update are computed
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to="none",
            **options,
        ),
    )
    if uses_engine:  # without starting one: its log-probs came with the completions
        trainer.use_vllm, trainer._last_loaded_step = True, 0
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.double()
    if trainer.ref_model is not None:
        trainer.ref_model.double()
    trainer.model.train()
    move(trainer.model, 1)
    inputs = trainer._generate_and_score_completions(
        [{"prompt": "1", "reward": reward} for reward in data.rewards]
    )
    move(trainer.model, 2)
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    return inputs["advantages"], loss.item(), gradients(trainer.model)


def groups(folder: Path) -> list[Group]:
    data = sampled(folder)
    completions = [
        Rollout.of_one_turn(
            text="",
            token_ids=ids,
            logprobs=logprobs,
            end_reason="stop" if ids[-1] == EOS else "length",
        )
        for ids, logprobs in zip(
            data.completion_ids, data.sampling_logprobs, strict=True
        )
    ]
    return [
        Group(
            prompt=Prompt(
                row=Row(index=first, prompt="", answer=None, columns={}),
                text="",
                token_ids=data.prompt_ids[first],
            ),
            completions=tuple(completions[first : first + GROUP_SIZE]),
            scores=tuple(
                Score(reward, {}, {})
                for reward in data.rewards[first : first + GROUP_SIZE]
            ),
        )
        for first in range(0, len(completions), GROUP_SIZE)
    ]


def ours(
    folder: Path, loss_config: LossConfig, advantage_config: AdvantageConfig
) -> tuple[torch.Tensor, float, dict[str, torch.Tensor]]:
    policy, reference = (
        load_policy(ModelConfig(path=str(folder), device="cpu")) for _ in range(2)
    )
    policy.model.double()
    reference.model.double()
    rewards = reward_matrix([sampled(folder).rewards]).reshape(-1, GROUP_SIZE)
    advantages = group_advantages(rewards, advantage_config)
    batch = batch_of(groups(folder), loss_config)
    micro_batches = batch.micro_batches(max_tokens=50, device=policy.device)
    assert len(micro_batches) > 3
    set_advantages(micro_batches, advantages)

    move(policy.model, 1)
    with torch.no_grad():
        for micro in micro_batches:
            micro.old_logprobs, _ = policy.logprobs(micro, temperature=TEMPERATURE)
            micro.reference_logprobs, _ = reference.logprobs(
                micro, temperature=TEMPERATURE
            )
    move(policy.model, 2)
    total = 0.0
    for micro in micro_batches:
        logprobs, entropy = policy.logprobs(micro, temperature=TEMPERATURE)
        assert micro.old_logprobs is not None
        loss, _ = objective(
            logprobs,
            micro.old_logprobs,
            micro.advantages,
            micro.mask,
            loss_config,
            micro.reference_logprobs,
            sampling_logprobs=micro.sampling_logprobs,
            entropy=entropy,
            totals=batch.totals,
        )
        loss.backward()
        total += loss.item()
    return torch.from_numpy(advantages), total, gradients(policy.model)


def check(
    folder: Path,
    out: Path,
    trl: dict[str, Any],
    loss: dict[str, Any],
    advantage: dict[str, Any] | None = None,
) -> None:
    # TRL weighs the KL by the ratio unless told otherwise; arXiv:2402.03300 does not
    options = {"beta": 0.0, "use_bias_correction_kl": False, **trl}
    expected = theirs(folder, out, options)
    found = ours(folder, LossConfig(**loss), AdvantageConfig(**(advantage or {})))

    assert found[0].flatten().tolist() == pytest.approx(
        expected[0].tolist(), rel=1e-5, abs=1e-6
    )
    assert found[1] == pytest.approx(expected[1], rel=1e-5)
    assert found[2].keys() == expected[2].keys()
    flat = [
        torch.cat([each[2][name].flatten() for name in expected[2]])
        for each in (found, expected)
    ]
    assert flat[1].norm() > 1e-3
    # VESPO's weight is a power of a product of ratios, which magnifies rounding
    allowed = 1e-5 if loss.get("surrogate") == "vespo" else 1e-6
    assert (flat[0] - flat[1]).norm() <= allowed * flat[1].norm()


MEAN_OF_MEANS = {"aggregation": "sequence_mean_token_mean"}
KL = {"kl_estimator": "k3", "kl_coef": 0.04}
GSPO = {"importance_sampling_level": "sequence"}


LOSS_TYPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": ({"loss_type": "grpo"}, MEAN_OF_MEANS),
    "bnpo": ({"loss_type": "bnpo"}, {"aggregation": "token_mean"}),
    "dapo": ({"loss_type": "dapo"}, {"aggregation": "token_mean"}),
    "dr_grpo": (
        {"loss_type": "dr_grpo"},
        {"aggregation": "constant", "constant_length": MAX_NEW},
    ),
    # TRL bounds the weight itself by epsilon_high, and not from below
    "cispo": (
        {"loss_type": "cispo", "epsilon_high": 1.05},
        {"surrogate": "cispo", "clip_low": 1.0, "clip_high": 0.05},
    ),
    "gspo": (
        {"loss_type": "grpo", **GSPO},
        {"surrogate": "gspo", **MEAN_OF_MEANS},
    ),
    "luspo": (
        {"loss_type": "luspo", **GSPO},
        {"surrogate": "gspo", "aggregation": "sequence_mean_token_sum"},
    ),
    "sapo": ({"loss_type": "sapo"}, {"surrogate": "sapo", **MEAN_OF_MEANS}),
    "vespo": ({"loss_type": "vespo"}, {"surrogate": "vespo"}),
}
# Without KL and mask, with either, with both: each of them at some loss types.
SOME = {
    *(("grpo", 0.04, True), ("bnpo", 0.0, False), ("dapo", 0.0, True)),
    *(("dr_grpo", 0.04, False), ("cispo", 0.04, True), ("gspo", 0.04, False)),
    *(("luspo", 0.0, True), ("sapo", 0.04, False), ("vespo", 0.04, True)),
}


def marks(*, is_one_of_some: bool) -> list[pytest.MarkDecorator]:
    """TRL's trainer takes a third of a second for each; all of them do so in slow."""
    return [] if is_one_of_some else [pytest.mark.slow]


@pytest.mark.parametrize(
    ("name", "beta", "masks"),
    [
        pytest.param(*each, marks=marks(is_one_of_some=each in SOME))
        for each in itertools.product(LOSS_TYPES, (0.0, 0.04), (False, True))
    ],
)
def test_each_loss_type(model_folder, tmp_path, name, *, beta, masks):
    trl, loss = LOSS_TYPES[name]

    check(
        model_folder,
        tmp_path,
        {**trl, "beta": beta, "mask_truncated_completions": masks},
        {**loss, "kl_estimator": "k3", "kl_coef": beta, "mask_truncated": masks},
    )


@pytest.mark.parametrize(
    ("trl", "loss"),
    [
        pytest.param(
            {"epsilon": 0.05},
            {"clip_low": 0.05, "clip_high": 0.05},
            marks=pytest.mark.slow,  # delta has it too
        ),
        (
            {"epsilon": 0.03, "epsilon_high": 0.1},
            {"clip_low": 0.03, "clip_high": 0.1},
        ),
        # TRL bounds the ratio by delta before the minimum: for a bad token the loss is
        # -delta·A at most, which is the dual clip
        (
            {"epsilon": 0.05, "delta": 1.1},
            {"clip_low": 0.05, "clip_high": 0.05, "dual_clip": 1.1},
        ),
        ({"entropy_coef": 0.01}, {"entropy_coef": 0.01}),
    ],
    ids=["narrow", "clip_higher", "delta", "entropy"],
)
def test_each_bound(model_folder, tmp_path, trl, loss):
    check(
        model_folder,
        tmp_path,
        {"loss_type": "bnpo", **trl},
        {"aggregation": "token_mean", **loss},
    )


@pytest.mark.parametrize(
    "level", ["token", pytest.param("sequence", marks=pytest.mark.slow)]
)
def test_a_kl_weighed_by_the_ratio(model_folder, tmp_path, level):
    check(
        model_folder,
        tmp_path,
        {
            "loss_type": "grpo",
            "beta": 0.04,
            "use_bias_correction_kl": True,
            "importance_sampling_level": level,
        },
        {
            "surrogate": "clip" if level == "token" else "gspo",
            **MEAN_OF_MEANS,
            **KL,
            "kl_ratio": True,
        },
    )


@pytest.mark.parametrize(
    "scale", [pytest.param("group", marks=pytest.mark.slow), "batch", "none"]
)
def test_each_scale_of_rewards(model_folder, tmp_path, scale):
    ours = {"group": "group_std", "batch": "batch_std", "none": "none"}

    check(
        model_folder,
        tmp_path,
        {"loss_type": "dapo", "scale_rewards": scale},
        {},
        {"scale": ours[scale]},
    )


@pytest.mark.parametrize(
    ("mode", "cap"),
    [
        pytest.param(mode, cap, marks=marks(is_one_of_some=cap == 1.6))
        for mode in (
            *("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
        )
        for cap in (1.3, 1.6, 2.5, 3.0)
    ],
)
def test_each_correction_of_the_sampling_engine(model_folder, tmp_path, mode, cap):
    check(
        model_folder,
        tmp_path,
        {
            "loss_type": "dapo",
            "beta": 0.04,
            "vllm_importance_sampling_mode": mode,
            "vllm_importance_sampling_clip_max": cap,
        },
        {**KL, "importance_correction": mode, "importance_cap": cap},
    )


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask"])
@pytest.mark.parametrize("mask", [None, 0.02])
def test_a_floor_of_the_correction_and_the_off_policy_mask(
    model_folder, tmp_path, mode, mask
):
    check(
        model_folder,
        tmp_path,
        {
            "loss_type": "dapo",
            "vllm_importance_sampling_mode": mode,
            "vllm_importance_sampling_clip_max": 1.6,
            "vllm_importance_sampling_clip_min": 0.7,
            "off_policy_mask_threshold": mask,
        },
        {
            "importance_correction": mode,
            "importance_cap": 1.6,
            "importance_floor": 0.7,
            "off_policy_mask": mask,
        },
    )


def test_the_settings_that_are_compared_differ(model_folder):
    # else a setting that is ignored would agree with TRL where it changes nothing
    settings: list[dict[str, Any]] = [
        {},
        MEAN_OF_MEANS,
        {"aggregation": "constant", "constant_length": MAX_NEW},
        {"surrogate": "cispo", "clip_low": 1.0, "clip_high": 0.05},
        {"surrogate": "gspo", **MEAN_OF_MEANS},
        {"surrogate": "gspo", "aggregation": "sequence_mean_token_sum"},
        KL,
        {**KL, "kl_ratio": True},
        {"mask_truncated": True},
        {"clip_low": 0.05, "clip_high": 0.05},
        {"clip_low": 0.03, "clip_high": 0.1},
        {"clip_low": 0.05, "clip_high": 0.05, "dual_clip": 1.1},
        {"entropy_coef": 0.01},
        {"surrogate": "sapo", **MEAN_OF_MEANS},
        {"surrogate": "vespo"},
        {"off_policy_mask": 0.02},
        {"importance_correction": "token_mask", "importance_floor": 0.7},
        *(
            {"importance_correction": f"{level}_{action}", "importance_cap": cap}
            for level, caps in (("token", (1.3, 1.6)), ("sequence", (1.3, 2.5)))
            for action in ("truncate", "mask")
            for cap in caps
        ),
    ]

    losses = sorted(
        ours(model_folder, LossConfig(**each), AdvantageConfig())[1]
        for each in settings
    )

    gaps = [high - low for low, high in itertools.pairwise(losses)]
    assert min(gaps) > 1e-4 * max(abs(loss) for loss in losses)
