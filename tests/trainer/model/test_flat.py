"""The pass without padding equals transformers' own, in values and in gradients."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.rollout.test_decoder import KINDS, policy_of
from tests.trainer.samples import cut, make_batch
from trainer.config import LossConfig
from trainer.model.attention import Block, BlockAttention
from trainer.model.kernels import flat_hidden, flat_layer
from trainer.model.packing import Batch, Layout, MicroBatch, TrainingSample, make_layout
from trainer.model.policy import Policy

CPU = torch.device("cpu")


def batch_of(*sequences: tuple[str, str], loss: LossConfig | None = None) -> Batch:
    """Letters stand for tokens."""
    samples = tuple(
        TrainingSample(
            prompt_ids=tuple(ord(letter) - 90 for letter in prompt),
            completion_ids=tuple(ord(letter) - 90 for letter in completion),
            sampling_logprobs=(0.0,) * len(completion),
        )
        for prompt, completion in sequences
    )
    return Batch(samples, loss=loss or LossConfig())


BATCHES = {
    "shared prompts": batch_of(
        ("abc", "defg"), ("abc", "a"), ("hi", "jklmnop"), ("hi", "xy"), ("abc", "defx")
    ),
    "one token each": batch_of(("ab", "c"), ("ab", "d"), ("x", "y")),
    "alone": batch_of(("abcd", "efgh")),
    "prompts too": batch_of(
        ("abc", "defg"),
        ("abc", "a"),
        ("h", "jklm"),
        loss=LossConfig(include_prompt=True),
    ),
    "many lengths": batch_of(
        *(("ab" * (k % 3 + 1), "c" * (2 * k + 1)) for k in range(24))
    ),
    "others": make_batch(9),
}


def transformers_hidden(policy: Policy, micro: MicroBatch) -> torch.Tensor:
    hidden = policy.body(input_ids=micro.input_ids, use_cache=False)[0]
    return hidden.flatten(0, 1).index_select(0, micro.places)


def gradients(policy: Policy, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
    policy.model.zero_grad()
    upstream = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0))
    (hidden * upstream).sum().backward()
    return {
        name: parameter.grad
        for name, parameter in policy.body.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(
            kind,
            name,
            marks=[] if kind == "qwen3" or name == "others" else [pytest.mark.slow],
        )
        for kind, name in product(KINDS, BATCHES)
    ],
)
def test_values_and_gradients_equal_those_of_transformers(
    kind, name, tmp_path, model_folder
):
    policy = policy_of(tmp_path, KINDS[kind], model_folder)

    check_passes_are_equal(policy, BATCHES[name])


@pytest.mark.parametrize(
    "changes",
    [
        {"gradient_checkpointing": True},
        {"lora_rank": 4},
        {"lora_rank": 4, "lora_targets": "q_proj, down_proj"},
        {"lora_rank": 4, "gradient_checkpointing": True},
        {"lora_rank": 4, "quantization": "4bit"},
    ],
)
@pytest.mark.parametrize("kind", ["llama with biases", "qwen3"])
def test_so_they_do_with_adapters_4_bits_and_recomputed_activations(
    kind, changes, tmp_path, model_folder
):
    policy = policy_of(tmp_path, KINDS[kind], model_folder, **changes)

    check_passes_are_equal(policy, BATCHES["shared prompts"])


@pytest.mark.parametrize("recomputes", [False, True])
def test_layers_are_computed_again_where_that_is_requested(
    recomputes, tmp_path, model_folder, monkeypatch
):
    policy = policy_of(
        tmp_path, KINDS["llama"], model_folder, gradient_checkpointing=recomputes
    )
    (micro,) = cut(BATCHES["alone"], policy, max_tokens=1_000)
    layers: list[object] = []
    monkeypatch.setattr(
        "trainer.model.kernels.flat_layer",
        lambda layer, *args, **options: (
            layers.append(layer) or flat_layer(layer, *args, **options)
        ),
    )

    policy.hidden(micro).sum().backward()

    once = list(policy.body.layers)
    assert layers == (once + once[::-1] if recomputes else once)


def check_passes_are_equal(policy: Policy, batch: Batch) -> None:
    for micro in cut(batch, policy, max_tokens=1_000):
        expected = transformers_hidden(policy, micro)
        found = policy.hidden(micro)

        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        wanted = gradients(policy, expected)
        own = gradients(policy, found)
        assert own.keys() == wanted.keys()
        largest = max(gradient.abs().max().item() for gradient in wanted.values())
        for key, gradient in wanted.items():
            bound = 1e-5 * gradient.abs().max().item() + 1e-6 * largest
            torch.testing.assert_close(own[key], gradient, rtol=1e-4, atol=bound)


def blocks_of(layout: Layout) -> tuple[Block, ...]:
    assert isinstance(layout.attention, BlockAttention)
    return layout.attention.blocks


@given(
    st.lists(
        st.tuples(
            st.text("abc", min_size=1, max_size=4),
            st.text("defgh", min_size=1, max_size=12),
        ),
        min_size=1,
        max_size=30,
    ),
    st.booleans(),
)
def test_each_scored_token_is_predicted_from_what_is_before_it(sequences, with_prompts):
    texts = [(tuple(map(ord, p)), tuple(map(ord, c))) for p, c in sequences]
    firsts = [1 if with_prompts else len(p) for p, _ in texts]

    layout = make_layout(texts, firsts, device=CPU)

    places = iter(layout.query_rows[layout.scored_rows].tolist())
    for (prompt, completion), first in zip(texts, firsts, strict=True):
        whole = prompt + completion
        for offset in range(first, len(whole)):
            index = next(places)
            assert layout.input_ids[index] == whole[offset - 1]
            assert layout.positions[index] == offset - 1
    assert next(places, None) is None


@given(
    st.lists(
        st.tuples(
            st.text("ab", min_size=1, max_size=3),
            st.text("defg", min_size=1, max_size=9),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_no_token_is_there_twice_and_no_prompt(sequences):
    texts = [(tuple(map(ord, p)), tuple(map(ord, c))) for p, c in sequences]

    layout = make_layout(texts, [len(p) for p, _ in texts], device=CPU)

    prompts = {p for p, _ in texts}
    count = sum(map(len, prompts)) + sum(len(c) - 1 for _, c in texts)
    assert len(layout.input_ids) == len(layout.positions) == count
    assert sum(block.num_tokens for block in blocks_of(layout)) == count


def test_padding_has_no_part_in_a_gradient(policy):
    (micro,) = cut(BATCHES["shared prompts"], policy, max_tokens=1_000)
    layout = micro.layout(torch.float32)
    blocks = blocks_of(layout)
    broken = replace(
        layout,
        attention=BlockAttention(
            tuple(
                # another token stands where there is padding
                replace(block, gather=block.gather.index_fill(0, block.padding, 1))
                for block in blocks
            )
        ),
    )

    plain = gradients(policy, flat_hidden(policy.body, layout))
    other = gradients(policy, flat_hidden(policy.body, broken))

    assert any(len(block.padding) for block in blocks)
    for name, gradient in plain.items():
        torch.testing.assert_close(gradient, other[name], rtol=1e-6, atol=1e-7)


def test_bfloat16_is_as_near_as_its_numbers_are(tmp_path, model_folder):
    policy = policy_of(tmp_path, KINDS["qwen3"], model_folder, dtype="bfloat16")
    (micro,) = cut(BATCHES["shared prompts"], policy, max_tokens=1_000)

    expected, found = transformers_hidden(policy, micro), policy.hidden(micro)

    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.1)
