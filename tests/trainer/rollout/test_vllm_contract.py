"""vLLM's source has what `trainer.rollout.vllm_worker` uses, on a GPU too.

On a CPU vLLM takes another worker and model runner, so a run here would not show what
those of a GPU lack.
"""

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from trainer.rollout.vllm import STORAGE_DEVICE

pytestmark = pytest.mark.vllm

MIXIN = "v1/worker/lora_model_runner_mixin.py"
RELOADING = "initialize_layerwise_reload finalize_layerwise_reload"
ADAPTERS = "modules packed_modules add_adapter activate_adapter remove_adapter"
MEMBERS = {
    "entrypoints/llm.py:LLM": "enqueue collective_rpc sleep wake_up llm_engine "
    "reset_prefix_cache",
    "v1/engine/llm_engine.py:LLMEngine": "step has_unfinished_requests engine_core",
    "v1/engine/core_client.py:InprocClient": "shutdown",
    "sampling_params.py:SamplingParams": "flat_logprobs",
    "logprobs.py:FlatLogprobs": "token_ids logprobs",
    "v1/worker/worker_base.py:WorkerBase": "vllm_config model_config",
    "v1/worker/gpu_worker.py:Worker": "get_model model_runner sleep wake_up "
    "_sleep_saved_buffers",
    "v1/worker/gpu/model_runner.py:GPUModelRunner": "lora_config main_stream get_model",
    f"{MIXIN}:LoRAModelRunnerMixin": "reset_lora_state lora_manager",
    "lora/worker_manager.py:WorkerLoRAManager": "_adapter_manager",
    "lora/model_manager.py:LoRAModelManager": ADAPTERS,
    "lora/lora_model.py:LoRAModel": "from_lora_tensors",
    "lora/peft_helper.py:PEFTHelper": "r lora_alpha target_modules",
    "lora/request.py:LoRARequest": "lora_name lora_int_id lora_path",
    "model_executor/model_loader/reload/layerwise.py": RELOADING,
    "config/vllm.py": "set_current_vllm_config",
}


@cache
def tree_of(path: str) -> ast.Module:
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return ast.parse((Path(spec.origin).parent / path).read_text(encoding="utf-8"))


def class_of(path: str, name: str) -> ast.ClassDef:
    classes = (node for node in tree_of(path).body if isinstance(node, ast.ClassDef))
    return next(node for node in classes if node.name == name)


def names_in(scope: ast.AST) -> Iterator[str]:
    """Functions, fields, and what methods assign to `self`."""
    for node in ast.walk(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_a_gpus_memory_is_lent_as_vllms_own_transfer_of_weights_does():
    """`VllmProcess` replaces the GPU's number in what rebuilds a tensor elsewhere."""
    receiving = class_of(
        "distributed/weight_transfer/ipc_engine.py", "IPCWeightTransferEngine"
    )
    replaced = [
        ast.unparse(node)
        for node in ast.walk(receiving)
        if isinstance(node, ast.Assign)
    ]
    parameters = list(inspect.signature(rebuild_cuda_tensor).parameters)

    assert f"list_args[{STORAGE_DEVICE}] = device_index" in replaced
    assert parameters[STORAGE_DEVICE] == "storage_device"


@pytest.mark.parametrize("place", MEMBERS)
def test_vllm_has_each_name_that_is_used(place):
    path, _, name = place.partition(":")
    scope = class_of(path, name) if name else tree_of(path)

    assert set(MEMBERS[place].split()) <= set(names_in(scope))


def test_a_gpu_keeps_the_stream_that_its_runner_was_started_on():
    runner = class_of("v1/worker/gpu/model_runner.py", "GPUModelRunner")
    functions = (node for node in runner.body if isinstance(node, ast.FunctionDef))
    stream = next(node for node in functions if node.name == "main_stream")

    assert [ast.unparse(each) for each in stream.decorator_list] == [
        "functools.cached_property"
    ]
    assert "torch.cuda.current_stream" in ast.unparse(stream.body[-1])


def test_vllms_sleeping_tags_are_weights_and_cache():
    assigned = {
        ast.unparse(node.target): node.value
        for node in tree_of("device_allocator/__init__.py").body
        if isinstance(node, ast.AnnAssign) and node.value is not None
    }

    assert ast.literal_eval(assigned["DEFERRABLE_TAGS"]) == ("weights", "kv_cache")
