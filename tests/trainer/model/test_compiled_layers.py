"""Updates by compiled layers are those by plain ones. No GPU is needed."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from tests.trainer.rollout.test_decoder import KINDS, policy_of
from tests.trainer.rollout.test_rollout_engines import config_of
from trainer.model import kernels
from trainer.model.packing import Batch, TrainingSample
from trainer.model.policy import Policy
from trainer.run import state

# of what dynamo itself does while it looks into functions
# Compiling changes the last bits of what the same process samples later.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
# Three numbers of tokens, of sequences and of prompts.
LENGTHS = (
    [(9, 5), (9, 7), (4, 12)],
    [(20, 11), (20, 3), (20, 2), (7, 30), (7, 1)],
    [(1, 40)],
)


@pytest.fixture
def graphs(monkeypatch) -> list[int]:
    """Operations of each graph that was compiled, by all of torch.compile's stages but
    its code generator.
    """
    sizes: list[int] = []

    def compile_graph(module, inputs):
        operations = [n for n in module.graph.nodes if n.op.startswith("call")]
        if operations:
            sizes.append(len(operations))
        return torch._dynamo.lookup_backend("aot_eager")(module, inputs)

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=compile_graph))
    torch._dynamo.reset()
    kernels._compiled_forward.cache_clear()
    with torch._dynamo.config.patch(suppress_errors=False):
        yield sizes
    kernels._compiled_forward.cache_clear()
    kernels.AttentionInterface.register(kernels._NAME, kernels._attend)


def packed_policy(tmp_path, model_folder, kind: str = "qwen2", **settings) -> Policy:
    """As on a GPU, in the form that its trial chooses there."""
    policy = policy_of(tmp_path, KINDS[kind], model_folder, **settings)
    kernels.use_attention(policy.model)
    kernels.use_fused_kernels(policy.model)
    policy.form = "packed"
    return policy


def passes(
    policy: Policy, sizes=LENGTHS
) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Log-probs and gradients of micro-batches of several sizes."""
    found = []
    weights = [w for w in policy.model.parameters() if w.requires_grad]
    for lengths in sizes:
        samples = tuple(
            TrainingSample(
                prompt_ids=tuple(2 + n % 30 for n in range(prompt)),
                completion_ids=tuple(2 + (7 * n + place) % 30 for n in range(count)),
                sampling_logprobs=(0.0,) * count,
            )
            for place, (prompt, count) in enumerate(lengths)
        )
        micro = Batch(samples).pack([*range(len(samples))], device=policy.device)
        logprob, _ = policy.logprobs(micro, temperature=1.0)
        loss = (logprob * micro.mask).sum() / micro.mask.sum()
        found.append((logprob.detach(), list(torch.autograd.grad(loss, weights))))
    return found


@pytest.mark.slow  # dynamo takes seconds
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("qwen2", {}),
        ("qwen3", {"lora_rank": 2, "gradient_checkpointing": True}),
        ("llama", {"gradient_checkpointing": True}),
    ],
)
def test_compiled_layers_give_the_log_probs_and_gradients_of_plain_ones(
    kind, settings, graphs, tmp_path, model_folder, monkeypatch
):
    policy = packed_policy(tmp_path, model_folder, kind, **settings)
    recomputed = []
    for layer in policy.body.layers if settings else ():
        through = layer._gradient_checkpointing_func
        monkeypatch.setattr(
            layer,
            "_gradient_checkpointing_func",
            lambda *inputs, through=through: recomputed.append(1) or through(*inputs),
        )
    plain = passes(policy)
    recomputed.clear()

    policy.compile_layers(on=True)
    assert policy.slowed == ""
    compiled = passes(policy, LENGTHS[:1])
    # before attention, behind it, and the rest: with a gradient, without, and without
    # one of the inputs; for all layers together
    assert len(graphs) <= 6 * len(policy.body.layers)
    counted = len(graphs)
    compiled += passes(policy, LENGTHS[1:])
    assert len(graphs) == counted  # for other sizes

    for ours, expected in zip(compiled, plain, strict=True):
        torch.testing.assert_close(ours[0], expected[0], rtol=1e-6, atol=1e-6)
        for one, other in zip(ours[1], expected[1], strict=True):
            assert (one - other).norm() <= 1e-6 * max(1, other.norm())
    if settings:
        # by the trial's three passes, and by three micro-batches
        assert len(recomputed) == 6 * len(policy.body.layers)


@pytest.mark.slow
def test_a_copy_and_a_pass_with_a_cache_are_not_compiled_again(
    graphs, tmp_path, model_folder
):
    policy = packed_policy(tmp_path, model_folder)
    ids = torch.arange(2, 12)[None]
    expected = policy.body(input_ids=ids, use_cache=True)[0]
    policy.compile_layers(on=True)
    counted = len(graphs)

    found = policy.body(input_ids=ids, use_cache=True)[0]
    passes(policy.copied())
    policy.compile_layers(on=True)

    assert 0 < counted == len(graphs)
    assert torch.equal(found, expected)
    assert policy.copied().body.layers[0].forward.__self__ is not policy.body.layers[0]


def test_layers_that_cannot_be_compiled_stay_plain_with_one_reason(
    tmp_path, model_folder, monkeypatch
):
    def fails(module, inputs):
        raise RuntimeError("no compiler here\nmore of it")

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=fails))
    torch._dynamo.reset()
    kernels._compiled_forward.cache_clear()
    policy = packed_policy(tmp_path, model_folder)
    plain = passes(policy)

    policy.compile_layers(on=True)
    kernels._compiled_forward.cache_clear()

    assert "BackendCompilerFailed" in policy.slowed
    assert not any("forward" in vars(layer) for layer in policy.body.layers)
    assert torch.equal(passes(policy)[0][0], plain[0][0])
    assert not torch._dynamo.config.suppress_errors


def test_padded_and_flat_models_are_not_compiled(graphs, policy):
    assert policy.form == "flat"
    policy.compile_layers(on=True)
    policy.form = "padded"
    policy.compile_layers(on=True)

    assert graphs == []
    assert not any("forward" in vars(layer) for layer in policy.body.layers)


@pytest.mark.parametrize(
    ("steps", "device", "is_whole", "compiles"),
    [
        (201, "cuda", True, True),
        (200, "cuda", True, False),
        (201, "cpu", True, False),
        (201, "cuda", False, False),  # sharded
    ],
)
def test_long_phases_of_one_gpu_are_compiled(
    steps, device, is_whole, compiles, monkeypatch
):
    monkeypatch.setattr(state, "make_phase", lambda *_, **__: None)
    compiled = []
    policy = SimpleNamespace(
        device=torch.device(device),
        compile_layers=lambda *, on: compiled.extend([1] * on),
    )
    policy.whole = policy if is_whole else None
    run = SimpleNamespace(
        policy=policy, engine=None, prompts=SimpleNamespace(train=[]), slowed=[]
    )
    phase = SimpleNamespace(config=config_of(optim={"num_steps": steps}), first_step=1)
    budget = SimpleNamespace(begin_phase=lambda *_, **__: None)

    state.enter_phase(run, SimpleNamespace(budget=budget), phase, saved=None)

    assert bool(compiled) is compiles
