"""Recommended settings of a run, by the model's size, its device and its texts.

Rules of thumb, to start from: a starter's own settings come first. The dashboard uses
them without a model, so this imports no torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer.config import RolloutConfig
from trainer.sizes.model_sizes import dimensions_of

# Peak learning rate of full training, for models up to a size. The first two are
# measured (tests/bench/RESULTS.md: the Countdown starter, SmolLM2-135M); above 1 B it
# is what DAPO (arXiv:2503.14476), DeepSeekMath (arXiv:2402.03300), verl's examples and
# TRL take. The third lies between.
_LEARNING_RATES = ((10e6, 3e-4), (300e6, 3e-5), (1e9, 3e-6), (math.inf, 1e-6))
# Adapters learn best with ten times the rate of full training, whatever their rank; in
# RL a small rank is enough ("LoRA Without Regret", Thinking Machines Lab, 2025; TRL's
# guide to it has 1e-6 and 1e-5).
_LORA_FACTOR, _LORA_RANK = 10, 32
# Bytes that each weight takes in full training: on a GPU in bfloat16, its float32
# master, AdamW's two moments and the gradient; on a CPU without the bfloat16 copy.
_FULL_BYTES = {True: 2 + 4 + 8 + 4, False: 4 + 8 + 4}
_STATIC_SHARE = 0.7  # of the memory; activations, logits and sampling need the rest
_LARGEST_FULL = 1e9  # parameters, where the memory is not known
# DAPO's group and, from 1 B parameters on, the completion length of verl's GSM8K
# examples; a smaller model gets half of it. A GPU samples more at once for little time.
_GPU_GROUP, _GPU_TOKENS, _SMALL_GPU_TOKENS = 16, 1_024, 512
# Two cores sample some 40 tokens a second from 135 M parameters, so a step of the
# default size would take a quarter of an hour (SmolLM2 in tests/bench/RESULTS.md).
_SLOW_ON_CPU, _CPU_PROMPTS, _CPU_TOKENS = 50e6, 8, 64
_CHARACTERS_PER_TOKEN = 3  # at least, in English and in numbers of most tokenizers
_ROUNDED_TO = 64  # tokens
_MOST_TOKENS = 8_192  # of a completion; a longer answer is rarely to be written out
_DEFAULT_TOKENS: int = RolloutConfig.model_fields["max_new_tokens"].default

_SIZE = re.compile(r"(?<![\d.])(\d{1,4}(?:\.\d{1,3})?)([bm])(?![a-z\d])", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Settings by path, as `RunConfig` names them."""

    num_parameters: float
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def is_lora(self) -> bool:
        return "model.lora_rank" in self.settings


def recommend(
    num_parameters: float,
    *,
    on_gpu: bool | None = None,
    memory_bytes: int | None = None,
    longest_answer: int = 0,
    room: int | None = None,
) -> Recommendation:
    """Settings for a model of this size; those it does not name keep their defaults.

    Args:
        num_parameters: of the model.
        on_gpu: whether it trains on a GPU; None: not known.
        memory_bytes: of the device; None: not known.
        longest_answer: characters of the dataset's longest answer.
        room: tokens of the model's context that the longest prompt leaves; None: not
            known.

    >>> found = recommend(1.5e9, on_gpu=True, memory_bytes=24 * 10**9)
    >>> found.settings["model.lora_rank"], found.settings["optim.learning_rate"]
    (32, 1e-05)
    """
    rate = next(rate for most, rate in _LEARNING_RATES if num_parameters <= most)
    settings: dict[str, Any] = {}
    fits_whole = num_parameters <= _LARGEST_FULL
    if on_gpu is not None and memory_bytes is not None:
        num_bytes = num_parameters * _FULL_BYTES[on_gpu]
        fits_whole = num_bytes <= _STATIC_SHARE * memory_bytes
    if not fits_whole:
        settings["model.lora_rank"] = _LORA_RANK
        rate *= _LORA_FACTOR
    # 10 × 3e-6 is 3.0000000000000004e-05
    settings["optim.learning_rate"] = float(f"{rate:.1g}")
    length = _DEFAULT_TOKENS
    if on_gpu:
        settings["rollout.group_size"] = _GPU_GROUP
        length = _GPU_TOKENS if num_parameters >= 1e9 else _SMALL_GPU_TOKENS
    elif on_gpu is False and num_parameters > _SLOW_ON_CPU:
        settings["rollout.prompts_per_step"] = _CPU_PROMPTS
        length = _CPU_TOKENS
    # space for the answer, and for as much beside it
    answer = 2 * math.ceil(longest_answer / _CHARACTERS_PER_TOKEN)
    length = max(
        length, min(math.ceil(answer / _ROUNDED_TO) * _ROUNDED_TO, _MOST_TOKENS)
    )
    if room is not None:
        length = max(1, min(length, room))
    if length != _DEFAULT_TOKENS:
        settings["rollout.max_new_tokens"] = length
    return Recommendation(num_parameters=num_parameters, settings=settings)


def size_in_config(model_config: Mapping[str, Any]) -> float | None:
    """Return parameters of the model with this config.json; None: it does not tell."""
    try:
        return dimensions_of(model_config).num_parameters
    except (ValueError, TypeError, ArithmeticError):  # it may contain anything
        return None


def size_in_name(model: str) -> float | None:
    """Return parameters that a model's name tells; None: it does not.

    >>> size_in_name("Qwen/Qwen2.5-0.5B-Instruct"), size_in_name("org/model")
    (500000000.0, None)
    """
    match = _SIZE.search(model.rstrip("/").rpartition("/")[2])
    if match is None:
        return None
    return float(match[1]) * (1e9 if match[2] in "bB" else 1e6)
