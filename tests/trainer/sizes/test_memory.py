"""What a run is said to need, by hand and against models themselves."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from tests.trainer.llama_sizes import LLAMA, SIZES, config_of
from tests.trainer.model.test_adapters import adapt_as_on_a_gpu
from tests.trainer.tiny import config_tree
from trainer.config import ModelConfig, RunConfig
from trainer.model.attention import BlockAttention
from trainer.model.kernels import flat_hidden, packed_hidden, use_attention
from trainer.model.lora import add_adapters
from trainer.model.packing import make_layout
from trainer.sizes.memory import MemoryEstimate, estimate
from trainer.sizes.model_sizes import dimensions_of

SERVER = {"kind": "server", "url": "http://127.0.0.1:1", "token_file": "t"}
PREFERENCE = {
    "advantage": {"credit": "preference"},
    "loss": {"surrogate": "reinforce"},
}
# LLAMA's by hand: layers 3 x (attention 64 x (64 + 32 + 32 + 64) + MLP 3 x 64 x 176),
# embedding 1000 x 64, norms 7 x 64.
NUM_LINEAR = 3 * (64 * 192 + 3 * 64 * 176)
NUM_TIED = NUM_LINEAR + 64_000 + 7 * 64
NODES = {"where": "ray", "num_nodes": 2, "num_processes": 2}


def of(
    model_config: dict[str, Any] = LLAMA, /, *, on_gpu: bool = False, **parts: Any
) -> MemoryEstimate:
    return estimate(config_of(**parts), model_config, on_gpu=on_gpu)


def saved_bytes(model: Any, forward: Callable[[], Iterable[torch.Tensor]]) -> int:
    """Bytes that autograd itself keeps of a forward pass, its weights left out.

    With those of the tensors that the pass names because someone else keeps them.
    """
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        for tensor in forward():
            pack(tensor)
    return sum(storage.nbytes() for storage in kept.values())


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("qwen2", {}),
    ("qwen3", {}),
    # these go through transformers' own pass, packed and padded; Qwen3 has no bound
    ("granite", {}),
    ("qwen3", {"attn_logit_softcapping": 50.0}),
]
NUMBERS = [
    (0, "float32", False),
    (0, "bfloat16", False),
    (4, "float32", False),
    (4, "bfloat16", False),
    (4, "bfloat16", True),
]
# Each kind and each sort of numbers twice, recomputed and not.
QUICK = {(k, (k + c + 2) % 5, c) for k in range(5) for c in (0, 1)}


@pytest.mark.parametrize(
    ("kind", "more", "checkpointing", "rank", "dtype", "on_gpu"),
    [
        pytest.param(
            *KINDS[k],
            bool(c),
            *NUMBERS[n],
            marks=[] if (k, n, c) in QUICK else [pytest.mark.slow],
        )
        for k, n, c in product(range(5), range(5), range(2))
    ],
)
def test_activations_are_what_autograd_keeps(
    kind, more, checkpointing, rank, dtype, on_gpu, monkeypatch
):
    if on_gpu:
        adapt_as_on_a_gpu(monkeypatch)
    sizes = SIZES | {"tie_word_embeddings": True} | more
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **sizes, pad_token_id=0)
    ).to(getattr(torch, dtype))
    settings = {
        "path": "nowhere",
        "lora_rank": rank,
        "dtype": dtype,
        "gradient_checkpointing": checkpointing,
    }
    if rank:
        add_adapters(model, ModelConfig.model_validate(settings))
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    model.train()
    shape = sizes | {"model_type": kind}
    form = dimensions_of(shape).form

    def forward() -> Iterable[torch.Tensor]:
        if form != "padded":
            sequences = [((7, *[k] * 15), tuple([k] * 33)) for k in (8, 9)]
            layout = make_layout(
                sequences, [16, 16], device=model.device, dtype=model.dtype
            )
            if form == "flat":
                flat_hidden(model.base_model, layout, recomputes=checkpointing)
            else:
                use_attention(model)
                packed_hidden(model, layout)
            assert isinstance(layout.attention, BlockAttention)
            biases = (block.bias for block in layout.attention.blocks)
            return [bias for bias in biases if bias is not None]
        tokens = torch.randint(0, 1_000, (2, 48))
        model.base_model(input_ids=tokens, use_cache=False)
        return []

    kept = saved_bytes(model, forward)
    found = of(shape, model=settings, on_gpu=on_gpu).activations
    if checkpointing:  # one layer's own come later, when it is computed again
        plain = settings | {"gradient_checkpointing": False}
        one, two = (
            of(shape | {"num_hidden_layers": n}, model=plain, on_gpu=on_gpu)
            for n in (1, 2)
        )
        found -= two.activations - one.activations

    assert found == pytest.approx(kept, rel=0.03)


def test_parts_of_training_all_weights_by_hand():
    found = of()

    assert found.weights == 4 * NUM_TIED
    assert found.master_weights == 0
    assert found.gradients == 4 * NUM_TIED
    assert found.optimizer == 8 * NUM_TIED
    assert found.reference == 4 * NUM_TIED  # the start, which KL is measured to
    # 8 completions, each of 48 tokens and a block of 64, keys and values of 32 numbers
    # in 3 layers; a buffer more while one grows
    assert found.kv_cache == 8 * 112 * 32 * 4 * 7
    # 64 logits of 1000 in a micro-batch: kept once, 3 times in work, and their weights
    assert found.logits == 4 * (64_000 * 4 + 64_000) + 64 * 64 * 4


def test_bfloat16_has_masters_in_float32():
    found = of(model={"dtype": "bfloat16"})

    assert found.weights == 2 * NUM_TIED
    assert found.master_weights == 4 * NUM_TIED
    assert found.gradients == 4 * NUM_TIED + 2 * 1_000 * 64  # and the embedding's own
    assert found.optimizer == 8 * NUM_TIED


def test_adapters_are_all_that_has_gradients_and_moments():
    # rank 4: q 64+64, k and v 64+32, o 64+64, gate and up 64+176, down 176+64
    num_adapter = 3 * 4 * (128 + 96 + 96 + 128 + 240 + 240 + 240)

    found = of(model={"lora_rank": 4, "dtype": "bfloat16"}, loss={"kl_coef": 0.1})

    assert found.weights == 2 * NUM_TIED + 4 * num_adapter
    assert found.master_weights == 0
    assert found.gradients == 4 * num_adapter
    assert found.optimizer == 8 * num_adapter
    assert found.reference == 0  # the base, which is there anyway

    on_gpu = of(model={"lora_rank": 4}, loss={"kl_coef": 0.1}, on_gpu=True)
    assert on_gpu.weights == 2 * NUM_TIED + 2 * num_adapter
    assert on_gpu.master_weights == 4 * num_adapter
    assert on_gpu.gradients == 4 * num_adapter
    assert on_gpu.optimizer == 8 * num_adapter


def test_adapters_on_some_layers_only():
    found = of(model={"lora_rank": 4, "lora_targets": "self_attn.q_proj, v_proj"})

    assert found.gradients == 4 * 3 * 4 * (128 + 96)


def test_the_number_of_adapter_weights_is_that_of_the_model():
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES))
    add_adapters(model, ModelConfig(path="nowhere", lora_rank=8))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)

    assert of(model={"lora_rank": 8}).gradients == 4 * trained


def test_four_bits_hold_linear_layers_in_an_eighth():
    settings = {"quantization": "4bit", "lora_rank": 4, "dtype": "bfloat16"}
    plain = of(model=settings | {"quantization": "none"})

    saved = plain.weights - of(model=settings).weights

    assert saved == pytest.approx((2 - 4.127 / 8) * NUM_LINEAR, abs=1)


def test_moments_of_eight_bits_take_a_quarter():
    eight = of(optim={"num_steps": 1, "optimizer": "adamw_8bit"}).optimizer

    assert eight == pytest.approx(of().optimizer / 4, rel=0.02)


def test_copies_that_stand_still_are_counted():
    wrong = [
        (parts, each, found)
        for parts, each in [
            ({}, 4),
            ({"reference": {"kind": "none"}}, 0),
            ({"loss": {"kl_coef": 0.1}}, 4),
            ({"reference": {"kind": "frozen"}}, 4),
            ({"reference": SERVER}, 0),
            (PREFERENCE, 4),
            ({"rollout": {"source": "start"}}, 4),
            ({"rollout": {"source": "start"}, "reference": {"kind": "frozen"}}, 8),
            (
                {
                    "model": {"dtype": "bfloat16"},
                    "reference": {"kind": "frozen", "mix_every_steps": 1},
                },
                6,
            ),
        ]
        if (found := of(**parts).reference) != each * NUM_TIED
    ]

    assert wrong == []


def test_a_start_to_measure_to_is_on_a_gpu_before_there_are_gradients():
    config = config_of(model={"dtype": "bfloat16"})
    found = estimate(config, LLAMA, on_gpu=True)
    unmeasured = config_of(model={"dtype": "bfloat16"}, reference={"kind": "none"})

    assert found.reference == 0
    assert found.measuring == found.parked == 2 * NUM_TIED
    assert found.total == estimate(unmeasured, LLAMA, on_gpu=True).total
    assert replace(found, measuring=2**40).total == found.always + 2**40
    assert of(model={"lora_rank": 4}).measuring == 0


def test_a_teacher_is_counted_with_its_own_size_and_parked_without_room():
    model = {"dtype": "bfloat16", "lora_rank": 4}
    config = config_of(model=model, reference={"model": "teacher"})
    large = LLAMA | {"num_hidden_layers": 60}
    num_large = dimensions_of(large).num_parameters

    def on(gpu_bytes: int | None, **parts: Any) -> MemoryEstimate:
        changed = config.model_copy(update=parts)
        return estimate(
            changed,
            LLAMA,
            on_gpu=True,
            gpu_bytes=gpu_bytes,
            teachers={"teacher": large},
        )

    roomy = on(2**36)
    tight = on(roomy.always + 2**30)

    assert roomy.reference == on(None).reference == 2 * num_large
    assert (roomy.measuring, roomy.parks_teacher) == (0, False)
    assert (tight.reference, tight.measuring) == (0, 2 * num_large)
    assert tight.parked == 2 * num_large
    assert tight.parks_teacher
    full = config.loss.model_copy(update={"kl_estimator": "full"})
    assert not on(roomy.always + 2**30, loss=full).parks_teacher
    with pytest.raises(ValueError, match=r"config\.json"):
        estimate(config, LLAMA)


def test_a_later_phase_has_a_copy_of_what_its_adapters_began_with():
    adapted = {
        "model": {"lora_rank": 4, "dtype": "bfloat16"},
        "loss": {"kl_coef": 0.1},
        "optim": {"num_steps": 6},
    }
    halves = [{"name": "first", "num_steps": 2}, {"name": "second", "num_steps": 4}]

    assert of(**adapted).reference == 0
    tree = config_of(**adapted).model_dump() | {"phases": halves}
    found = estimate(RunConfig.model_validate(tree), LLAMA)
    assert found.reference == 2 * NUM_TIED
    assert found.first_step == 3


def test_a_reference_that_moves_is_not_kept_in_four_bits():
    model = {"quantization": "4bit", "lora_rank": 4, "dtype": "bfloat16"}
    still = of(model=model, reference={"kind": "frozen"}).reference
    moving = {"kind": "frozen", "reset_every_steps": 1}

    assert still < NUM_TIED * 1.5
    assert of(model=model, reference=moving).reference == 2 * NUM_TIED


def test_recomputing_keeps_less_the_more_layers_there_are():
    deep = LLAMA | {"num_hidden_layers": 40}

    plain = of(deep).activations
    recomputed = of(deep, model={"gradient_checkpointing": True}).activations

    assert recomputed < plain / 8


def test_a_gpu_keeps_no_logits_for_the_backward_pass():
    found = of(on_gpu=True)

    # 64 logits of 1000, 3 times in work, and their weights; bfloat16 hidden states
    assert found.logits == 4 * (64_000 * 3 + 64_000) + 64 * 64 * 2


def test_many_logits_are_not_held_at_once():
    large = LLAMA | {"vocab_size": 200_000}
    tokens = {"num_steps": 1, "micro_batch_tokens": 48 * 1_000}
    rollout = {"prompts_per_step": 500, "group_size": 2, "max_new_tokens": 32}

    found = of(large, optim=tokens, rollout=rollout).logits

    # 32,000 tokens x 200,000 would be 23.8 GiB
    assert found == 4 * (3 * 2**24 + 200_000 * 64 + 32_000 * 64)


def test_several_processes_share_all_but_what_is_sampled_from():
    model = {"dtype": "bfloat16"}
    one = of(model=model)

    four = of(model=model, distributed={"num_processes": 4})

    assert four.weights == one.weights == 2 * NUM_TIED
    assert four.master_weights == NUM_TIED
    assert four.optimizer == one.optimizer // 4
    assert NUM_TIED < four.gradients < one.gradients
    assert four.kv_cache < one.kv_cache


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, 2 * NUM_TIED / 4),
        ({"reference": {"mix_every_steps": 1}}, (2 + 4) * NUM_TIED / 4),
        ({"distributed": NODES}, 2 * NUM_TIED / 2),  # a node's two have all of it
        # the embedding stays whole, since a full KL reads it outside of a pass
        (
            {"loss": {"kl_coef": 0.1, "kl_estimator": "full"}},
            2 * (64_000 + (NUM_TIED - 64_000) / 4),
        ),
        ({"model": {"dtype": "bfloat16", "lora_rank": 4}}, 0),  # the policy's own base
    ],
)
def test_a_frozen_reference_is_shared_by_processes(parts, expected):
    usual = {
        "model": {"dtype": "bfloat16"},
        "loss": {"kl_coef": 0.1},
        "distributed": {"num_processes": 4},
    }

    assert of(**usual | parts).reference == expected


def test_each_node_has_all_parts_where_they_fit():
    """By hand: a node's two processes hold 4 + 8 bytes a weight, four hold half."""
    model = {"dtype": "bfloat16", "gradient_checkpointing": True}
    config = config_of(model=model, distributed=NODES)
    least = estimate(config, LLAMA, on_gpu=True)

    def shards(room: int) -> int:
        return estimate(config, LLAMA, on_gpu=True, gpu_bytes=room).num_shards

    by_node = estimate(config, LLAMA, on_gpu=True, gpu_bytes=2**34)
    assert (least.num_shards, by_node.num_shards) == (4, 2)
    assert least.master_weights + least.optimizer == (4 + 8) * NUM_TIED // 4
    assert by_node.master_weights + by_node.optimizer == (4 + 8) * NUM_TIED // 2
    # the smallest passes may take nine tenths of what is left
    room = 2**30 + by_node.always + (by_node.total - by_node.always) / 0.9
    assert (shards(int(room) - 1), shards(int(room) + 1)) == (4, 2)


def test_several_processes_hold_the_embedding_and_the_head_together():
    parts = {"model": {"dtype": "bfloat16"}, "distributed": {"num_processes": 4}}
    tied = of(LLAMA | {"tie_word_embeddings": True}, **parts).gradients

    untied = of(LLAMA | {"tie_word_embeddings": False}, **parts).gradients

    # the head's part of the gradients; whole in bfloat16 and its float32 gradient
    assert untied - tied == (4 // 4 + 2 + 4) * 1000 * 64


def test_more_tokens_at_once_need_more():
    budgets = (100, 200, 400)

    found = [of(optim={"num_steps": 1, "micro_batch_tokens": b}) for b in budgets]

    activations = [each.activations for each in found]
    # each row brings its completion; two of a group share a prompt
    assert 1.7 < activations[1] / activations[0] < 2
    assert 1.8 < activations[2] / activations[1] < 2


def test_no_more_rows_are_counted_than_there_are():
    few = of(optim={"num_steps": 1, "micro_batch_tokens": 1_000_000})
    all_rows = of(optim={"num_steps": 1, "micro_batch_tokens": 8 * 48})

    assert few == all_rows


def test_the_peak_is_the_larger_of_sampling_and_updating():
    sampling = of(rollout={"group_size": 100, "max_new_tokens": 32})
    updating = of()

    assert sampling.while_sampling > sampling.while_updating
    assert sampling.total == sampling.always + sampling.while_sampling
    assert updating.while_updating > updating.while_sampling
    assert updating.total == updating.always + updating.while_updating


def test_a_dataset_is_not_sampled():
    found = of(
        rollout={"source": "dataset", "group_size": 1}, advantage={"credit": "ones"}
    )

    assert found.while_sampling == 0


def test_the_largest_phase_counts():
    small = {"name": "first", "num_steps": 1}
    changes = {"loss": {"kl_coef": 0.1}, "reference": {"kind": "auto"}}
    large = small | {"name": "then", "changes": changes}
    tree = config_of(
        optim={"num_steps": 2, "micro_batch_tokens": 100}, reference={"kind": "none"}
    ).model_dump()

    first, then = (
        estimate(RunConfig.model_validate(tree | {"phases": phases}), LLAMA)
        for phases in ([large, small], [small, large])
    )

    assert (first.first_step, then.first_step) == (1, 2)
    assert first == replace(then, first_step=1)
    assert first.reference == 4 * NUM_TIED


def test_held_out_prompts_are_sampled_too():
    tree = {"max_prompt_tokens": 16, "num_eval_rows": 10}

    found = of(data=tree, evaluation={"every_steps": 1, "samples_per_prompt": 4})

    assert found.kv_cache == of().kv_cache * 40 // 8


def test_a_critic_costs_a_policy_without_its_head():
    found = of()

    assert found.ppo_critic == (
        found.weights + found.gradients + found.optimizer + found.activations
    )
    untied = of(LLAMA | {"tie_word_embeddings": False})
    assert untied.ppo_critic == found.ppo_critic


def test_auto_is_bfloat16_on_a_gpu():
    config = config_of()

    assert estimate(config, LLAMA, on_gpu=True).weights == 2 * NUM_TIED
    assert estimate(config, LLAMA, on_gpu=False).weights == 4 * NUM_TIED


@pytest.mark.parametrize(
    "missing", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]
)
def test_a_model_of_unknown_size_is_named(missing):
    config = {name: value for name, value in LLAMA.items() if name != missing}

    with pytest.raises(ValueError, match=f'"llama".* {missing}'):
        of(config)


def test_the_largest_evaluation_set_is_sampled_at_once():
    evaluation = {"every_steps": 1, "samples_per_prompt": 2}
    config = config_of(evaluation=evaluation, rollout={"max_batch_rows": 64})

    large = estimate(config, LLAMA, largest_set=30)
    capped = estimate(config, LLAMA, largest_set=1_000)

    own = max(config.completions_per_step, 2 * config.data.num_eval_rows)
    assert large.kv_cache * own == estimate(config, LLAMA).kv_cache * 60
    assert capped.kv_cache * 60 == large.kv_cache * 64


def test_it_reads_the_models_folder(model_folder, rows_path):
    config = RunConfig.model_validate(config_tree(model_folder, rows_path))
    model = AutoModelForCausalLM.from_pretrained(model_folder)

    found = estimate(config)

    assert found.weights == pytest.approx(4 * model.num_parameters(), rel=0.02)


def test_vllm_has_weights_and_a_cache_of_its_own():
    own = of(rollout={"cache_gib": 0.5})

    vllm = of(rollout={"engine": "vllm", "cache_gib": 0.5})

    assert vllm.engine == own.weights + 2**29
    assert vllm.always == own.always + vllm.engine
    assert (vllm.kv_cache, vllm.sampling) == (0, own.sampling)


def test_a_vllm_on_several_gpus_has_its_part_of_the_weights_on_the_trainers():
    own = of()

    rollout = {"engine": "vllm", "cache_gib": 0.5, "tensor_parallel_size": 4}

    assert of(rollout=rollout).engine == own.weights // 4 + 2**29


def test_a_vllm_that_sleeps_is_held_while_sampling_only():
    config = config_of(rollout={"engine": "vllm", "sleep": True, "cache_gib": 4.5})

    found = estimate(config, LLAMA, on_gpu=True)

    assert found.engine == 0
    assert found.sleeping_engine > 2**32
    assert found.while_sampling == found.sampling + found.sleeping_engine


def test_a_rollout_server_takes_sampling_elsewhere():
    server = {"engine": "vllm_server", "url": "http://127.0.0.1", "token_file": "t"}

    found = of(rollout=server)

    assert (found.engine, found.kv_cache, found.sampling) == (0, 0, 0)


ONE_STEP_OFF = {
    "rollout": {
        "prompts_per_step": 4,
        "group_size": 2,
        "max_new_tokens": 32,
        "one_step_off": True,
    },
    "loss": {"importance_correction": "token_truncate"},
}


def test_one_step_off_sampling_and_updating_do_not_take_turns():
    plain = of()

    found = of(**ONE_STEP_OFF)

    assert found.snapshot == 4 * NUM_TIED
    assert found.always == plain.always + found.snapshot
    assert found.while_sampling == plain.while_sampling > 0
    assert found.total == found.always + found.while_sampling + found.while_updating


def test_a_snapshot_of_adapters_is_next_to_nothing():
    found = of(**ONE_STEP_OFF, model={"lora_rank": 4, "dtype": "bfloat16"})

    assert found.snapshot == found.gradients
    assert found.snapshot < found.weights / 4


@pytest.mark.parametrize(
    "parts",
    [
        {"rollout": ONE_STEP_OFF["rollout"] | {"engine": "vllm"}},  # handed over
        {"rollout": ONE_STEP_OFF["rollout"] | {"source": "start"}},  # never moves
        {"distributed": {"num_processes": 2}},  # each has a whole copy anyway
    ],
)
def test_a_snapshot_is_where_weights_move_while_they_are_read(parts):
    found = of(**ONE_STEP_OFF | parts)

    assert found.snapshot == 0
    assert found.is_one_step_off


def test_a_snapshot_is_held_in_phases_too_that_need_none():
    tree = config_of(
        **ONE_STEP_OFF, optim={"num_steps": 2, "micro_batch_tokens": 100}
    ).model_dump()
    large = {"one_step_off": False, "group_size": 1_000}
    tree["phases"] = [
        {"name": "first", "num_steps": 1},
        {
            "name": "then",
            "num_steps": 1,
            "changes": {"rollout": large},
        },
    ]

    found = estimate(RunConfig.model_validate(tree), LLAMA)

    assert (found.first_step, found.is_one_step_off) == (2, False)
    assert found.snapshot == 4 * NUM_TIED


GPU_RUN = {
    "model": {"device": "cuda"},
    "rollout": {"prompts_per_step": 4_000, "group_size": 8, "max_new_tokens": 32},
    "optim": {"num_steps": 1, "micro_batch_tokens": "auto"},
}
DEEP = LLAMA | {"num_hidden_layers": 40}


def on_gpu(mib: float | None, **parts: Any) -> MemoryEstimate:
    gpu_bytes = None if mib is None else round(mib * 2**20)
    return estimate(config_of(**(GPU_RUN | parts)), DEEP, gpu_bytes=gpu_bytes)


def test_on_a_cpu_auto_is_8192_tokens_without_checkpointing():
    given = {"micro_batch_tokens": 8_192, "num_steps": 1}
    optim = given | {"micro_batch_tokens": "auto"}
    auto = of(optim=optim, model={"device": "cpu"})

    assert auto == of(
        optim=given, model={"device": "cpu", "gradient_checkpointing": False}
    )
    assert auto.sizes is None


def test_a_run_is_never_too_large_that_fits_at_some_size():
    least = on_gpu(None)

    for mib in (1_100, 1_500, 2_000, 4_000, 8_000, 100_000):
        found = on_gpu(mib)
        assert least.total <= found.total <= mib * 2**20
        assert not found.is_least
    assert least.is_least


def test_a_larger_gpu_takes_more_at_once_and_recomputes_less():
    sizes = [on_gpu(mib).sizes for mib in (1_300, 1_600, 3_000, 100_000)]

    tokens = [each.tokens for each in sizes if each]
    assert len(tokens) == 4
    assert tokens[0] < tokens[1]
    assert tokens[-1] == 131_072
    assert [each.checkpointing for each in sizes if each][::3] == [True, False]


def test_configured_sizes_are_not_chosen():
    given = {
        "optim": {"num_steps": 1, "micro_batch_tokens": 4_096},
        "model": {"device": "cuda", "gradient_checkpointing": True},
    }

    assert on_gpu(10_000, **given).sizes is None
    assert on_gpu(10_000, **given).activations == on_gpu(None, **given).activations


def test_fewer_completions_are_sampled_at_once_where_memory_is_little():
    small, large = on_gpu(1_300), on_gpu(100_000)

    assert small.kv_cache < large.kv_cache
