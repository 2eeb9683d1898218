"""Settings recommended for a model's size, its device and its texts."""

from typing import Any

import pytest

from trainer.config import RunConfig
from trainer.sizes.recommended import recommend, size_in_config, size_in_name

GB = 10**9
RATE, RANK = "optim.learning_rate", "model.lora_rank"
LENGTH, GROUP = "rollout.max_new_tokens", "rollout.group_size"


def settings_of(size: float, **options: Any) -> dict[str, Any]:
    return recommend(size, **options).settings


@pytest.mark.parametrize(
    ("size", "rate"), [(0.6e6, 3e-4), (135e6, 3e-5), (0.5e9, 3e-6), (3e9, 1e-6)]
)
def test_a_larger_model_gets_a_lower_learning_rate(size, rate):
    found = settings_of(size, on_gpu=True, memory_bytes=80 * GB)

    assert found[RATE] == rate
    assert RANK not in found


def test_adapters_are_for_what_does_not_fit_and_get_ten_times_the_rate():
    # full training takes 18 bytes a weight on a GPU: 27 GB of 0.7 · 24, or 0.7 · 40
    small = settings_of(1.5e9, on_gpu=True, memory_bytes=24 * GB)
    large = settings_of(1.5e9, on_gpu=True, memory_bytes=40 * GB)

    assert (small[RANK], small[RATE]) == (32, 1e-5)
    assert RANK not in large
    assert large[RATE] == 1e-6


def test_size_decides_if_the_device_is_unknown():
    assert RANK not in settings_of(0.9e9)
    assert settings_of(1.1e9)[RANK] == 32
    assert not {GROUP, LENGTH} & settings_of(1.1e9).keys()


def test_a_gpu_samples_more_and_longer():
    found = settings_of(3e9, on_gpu=True, memory_bytes=80 * GB)

    assert (found[GROUP], found[LENGTH]) == (16, 1_024)
    assert settings_of(0.5e9, on_gpu=True, memory_bytes=80 * GB)[LENGTH] == 512


def test_a_cpu_samples_less_of_what_is_slow_there():
    found = settings_of(135e6, on_gpu=False, memory_bytes=16 * GB)

    assert (found["rollout.prompts_per_step"], found[LENGTH]) == (8, 64)
    assert settings_of(1e6, on_gpu=False, memory_bytes=16 * GB) == {RATE: 3e-4}


@pytest.mark.parametrize(
    ("options", "length"),
    [
        ({"longest_answer": 1_200}, 832),  # 800 tokens, in steps of 64
        ({"longest_answer": 30}, None),
        ({"longest_answer": 10**7}, 8_192),
        ({"room": 100}, 100),
        ({"longest_answer": 1_200, "room": 700}, 700),
        ({"room": -5}, 1),
    ],
)
def test_completions_have_space_for_the_answer_within_the_context(options, length):
    assert settings_of(0.5e9, **options).get(LENGTH) == length


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", 0.5e9),
        ("google/gemma-2-2b-it", 2e9),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 135e6),
        ("/models/Llama-3.2-1B/", 1e9),
        ("Qwen/Qwen3-30B-A3B", 30e9),
        ("org/model", None),
        ("org/llama-7bit", None),
    ],
)
def test_a_size_is_read_from_a_name(name, size):
    assert size_in_name(name) == size


def test_a_config_without_sizes_has_none():
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}

    assert size_in_config({}) is None
    assert size_in_config(sizes | {"vocab_size": 100, "intermediate_size": 16}) == (
        2 * (4 * 64 + 3 * 128) + 200 * 8 + 5 * 8
    )


def test_every_setting_is_one_of_a_run():
    paths = {
        *settings_of(7e9, on_gpu=True, memory_bytes=24 * GB),
        *settings_of(135e6, on_gpu=False, memory_bytes=GB * 16),
    }

    for path in paths:
        part, name = path.split(".")
        part_type = RunConfig.model_fields[part].annotation
        assert part_type is not None
        assert name in part_type.model_fields, path
