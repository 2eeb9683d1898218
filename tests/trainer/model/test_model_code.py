"""A folder or a hub repository may carry code; it is never run."""

import json
import shutil

import pytest
import torch

from trainer.config import ModelConfig
from trainer.model.loading import load_model, model_fingerprint
from trainer.tokenizers import load_tokenizer

PLANTED = "open({trace!r}, 'w')\n"
CONFIG = {
    "model_type": "unheard-of",
    "auto_map": {
        "AutoConfig": "code.Config",
        "AutoModelForCausalLM": "code.Model",
        "AutoTokenizer": ["code.Tokenizer", None],
    },
}


@pytest.fixture
def trace(tmp_path, monkeypatch):
    # Someone at a terminal who would say yes to anything.
    monkeypatch.setattr("builtins.input", lambda question: "y")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    trace = tmp_path / "was-run"
    (tmp_path / "code.py").write_text(PLANTED.format(trace=str(trace)))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    return trace


def test_a_models_own_code_is_not_run(trace):
    with pytest.raises(ValueError, match="load"):
        load_model(
            str(trace.parent), ModelConfig(path=str(trace.parent)), revision=None
        )

    assert not trace.exists()


def test_a_models_code_is_not_run_for_its_fingerprint(trace):
    with pytest.raises(ValueError, match="cannot be read"):
        model_fingerprint(str(trace.parent))

    assert not trace.exists()


def test_a_tokenizers_own_code_is_not_run(trace):
    with pytest.raises(ValueError, match="load"):
        load_tokenizer(str(trace.parent))

    assert not trace.exists()


class Planted:
    def __init__(self, trace: str) -> None:
        self.trace = trace

    def __reduce__(self):
        return (open, (self.trace, "w"))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "training_args.bin"])
def test_pickled_weights_are_not_opened(name, model_folder, tmp_path):
    """A model whose weights are a pickle, which is a program, is refused."""
    trace = tmp_path / "was-run"
    folder = shutil.copytree(model_folder, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Planted(str(trace))}, folder / name)

    with pytest.raises(ValueError, match="load"):
        load_model(str(folder), ModelConfig(path=str(folder)), revision=None)

    assert not trace.exists()
