"""What a model folder lacks, and what a GPU cannot do, is said before a run starts."""

import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForSequenceClassification,
    Qwen3VLConfig,
)

from tests.environment import child_environment, run_here
from tests.trainer.rollout.test_decoder import SIZES
from tests.trainer.tiny import config_tree
from trainer import hub
from trainer.config import DataConfig, ModelConfig, RunConfig
from trainer.data import PromptRenderer, Row
from trainer.hub import check_source
from trainer.model import classifier, loading
from trainer.model.policy import Policy, load_policy
from trainer.parallel.world import World
from trainer.run import setup
from trainer.sizes.model_sizes import dimensions_of

UP = "model.layers.1.mlp.up_proj.weight"
CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path, model_folder) -> Path:
    return shutil.copytree(model_folder, tmp_path / "model")


def change(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def load(folder: Path) -> Policy:
    return load_policy(ModelConfig(path=str(folder), device="cpu"))


def test_a_model_that_lacks_a_tensor_is_refused(folder):
    with pytest.raises(ValueError, match=UP):
        load(change(folder, lambda tensors: tensors.pop(UP)))


def test_a_tied_head_is_not_missing_and_an_unused_tensor_is_a_warning(folder, capsys):
    extra = {"model.extra.weight": torch.zeros(2)}

    load(change(folder, lambda tensors: tensors.update(extra)))

    assert "model.extra.weight" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lost", "expected"),
    [("model.layers.0.mlp.up_proj.weight", "lacks 1 tensor"), ("score.weight", "head")],
)
def test_a_reward_model_that_lacks_a_tensor_is_refused(lost, expected, tmp_path):
    config = LlamaConfig(**SIZES, num_labels=1)
    LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    change(tmp_path, lambda tensors: tensors.pop(lost))
    settings: Any = SimpleNamespace(path=str(tmp_path), revision=None, head="sequence")

    with pytest.raises(ValueError, match=lost) as error:
        classifier._load(settings, dtype=torch.float32)

    assert expected in str(error.value)


def test_the_folder_of_an_adapter_names_its_base(tmp_path):
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "org/base"})
    )

    with pytest.raises(ValueError, match=r"adapter of org/base"):
        check_source(str(tmp_path), revision=None)


def test_an_adapters_settings_are_read_inside_the_folder_and_to_a_limit(
    tmp_path, monkeypatch
):
    adapter, elsewhere = tmp_path / "adapter", tmp_path / "settings.json"
    adapter.mkdir()
    elsewhere.write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    (adapter / "adapter_config.json").symlink_to(elsewhere)

    with pytest.raises(ValueError, match="adapter, not a model"):
        check_source(str(adapter), revision=None)

    (adapter / "adapter_config.json").unlink()
    elsewhere.rename(adapter / "adapter_config.json")
    monkeypatch.setattr(hub, "_LARGEST_READ_WHOLE", 20)
    with pytest.raises(ValueError, match="adapter, not a model"):
        check_source(str(adapter), revision=None)


def test_an_index_in_any_folder_is_read_to_a_limit(tmp_path, monkeypatch):
    (tmp_path / "onnx").mkdir()
    index = tmp_path / "onnx" / "model.safetensors.index.json"
    index.write_text('{"weight_map": {}}')
    hub.check_files(tmp_path)
    monkeypatch.setattr(hub, "_LARGEST_READ_WHOLE", 10)

    with pytest.raises(ValueError, match="18 bytes"):
        hub.check_files(tmp_path)


def test_a_model_of_pictures_alone_is_refused_by_its_kind(folder):
    Qwen3VLConfig().save_pretrained(folder)

    with pytest.raises(ValueError, match="qwen3_vl"):
        load(folder)


def test_a_token_without_an_embedding_is_named_with_both_sizes(policy):
    tokenizer, size = policy.tokenizer, policy.num_embeddings
    tokenizer.add_tokens(["<new>"])
    renderer = PromptRenderer(
        tokenizer, DataConfig(rows="-"), num_embeddings=policy.num_embeddings
    )

    def row(prompt: str) -> Row:
        return Row(index=0, prompt=prompt, answer=None, columns={})

    renderer.render(row("1+1="))
    with pytest.raises(ValueError, match=rf"<new>.*{size + 1:,}.* {size:,}"):
        renderer.render(row("1+<new>="))


# --- GPUs


@pytest.fixture
def gpu(monkeypatch) -> Callable[[int, int], None]:
    def install(major: int, minor: int) -> None:
        gpu = SimpleNamespace(name="GPU", major=major, minor=minor)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: gpu)
        built = ["sm_75", "sm_80", "sm_90a", "sm_120", "compute_120"]
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built)

    return install


@pytest.mark.parametrize(
    ("major", "minor", "expected"),
    [(7, 5, torch.float32), (8, 0, torch.bfloat16), (12, 0, torch.bfloat16)],
)
def test_auto_takes_bfloat16_only_where_the_gpu_has_it(gpu, major, minor, expected):
    gpu(major, minor)
    config = ModelConfig(path="-")

    assert loading.pick_dtype(config, loading.pick_device(config)) == expected


def test_a_gpu_that_torch_has_no_kernels_for_is_refused(gpu):
    gpu(7, 0)

    with pytest.raises(ValueError, match=r"7\.0.* 7\.5"):
        loading.pick_device(ModelConfig(path="-"))
    assert loading.pick_device(ModelConfig(path="-", device="cpu")) == CPU


def test_weights_are_read_straight_to_a_gpu(folder, monkeypatch):
    places: list[object] = []
    monkeypatch.setattr(loading, "pick_device", lambda _: torch.device("cuda", 1))
    monkeypatch.setattr(loading, "prepare_device", lambda *_, **__: None)
    monkeypatch.setattr(
        loading, "_read", lambda *_, **options: places.append(options["device_map"])
    )
    config = ModelConfig(path=str(folder), dtype="float32")

    loading.load_model(str(folder), config, revision=None)

    assert places == [{"": torch.device("cuda", 1)}]


def test_a_run_that_no_gpu_holds_is_refused_before_loading(
    folder, rows_path, monkeypatch
):
    """13,000 parameters in bfloat16 with float32 masters and moments: 0.2 MB."""
    monkeypatch.setattr(setup, "pick_device", lambda _: torch.device("cuda"))
    tree = config_tree(folder, rows_path, loss={"kl_coef": 0.0})
    config = RunConfig.model_validate(tree)

    def hold(num_bytes: int) -> None:
        memory = SimpleNamespace(total_bytes=lambda: num_bytes)
        monkeypatch.setattr(setup, "memory_of", lambda _device: memory)
        setup.check_memory(config)

    with pytest.raises(ValueError, match="GiB"):
        hold(100_000)
    hold(2**31)


def test_a_run_is_refused_by_the_parts_that_each_gpu_holds(
    folder, rows_path, monkeypatch
):
    """By hand, bytes a weight: the copy 2, and of a shard 4 of it, 8 of moments and 2
    of the reference."""
    monkeypatch.setattr(setup, "pick_device", lambda _: torch.device("cuda"))
    tree = config_tree(folder, rows_path, loss={"kl_coef": 0.1})
    tree["model"]["dtype"] = "bfloat16"
    config = RunConfig.model_validate(tree)
    sizes = json.loads((folder / "config.json").read_bytes())
    num_weights = dimensions_of(sizes).num_parameters

    def hold(world: World, num_bytes: float) -> int:
        memory = SimpleNamespace(total_bytes=lambda: math.ceil(num_bytes))
        monkeypatch.setattr(setup, "memory_of", lambda _device: memory)
        return setup.check_memory(config, world)

    for world, needs in (
        (World(), 16),
        (World(size=2), 2 + 14 / 2),
        (World(size=4), 2 + 14 / 4),
        (World(size=4, nodes=2), 2 + 14 / 4),
    ):
        assert hold(world, needs * num_weights) == world.size
        with pytest.raises(ValueError, match="GiB on each GPU"):
            hold(world, needs * num_weights - 8)
    assert hold(World(size=4, nodes=2), 2**31) == 2


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, "expandable_segments:True"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, "backend:native"),
        ({"PYTORCH_ALLOC_CONF": "backend:native"}, "None"),
    ],
)
def test_gpu_memory_grows_in_segments_unless_the_user_chose(own, expected):
    code = "import os; from trainer.host import settle_in; settle_in(); "
    code += "print(os.environ.get('PYTORCH_CUDA_ALLOC_CONF'))"
    unset = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}
    kept = {k: v for k, v in child_environment().items() if k not in unset}

    done = run_here(sys.executable, "-c", code, env=kept | own, check=True)

    assert done.stdout.strip() == expected
