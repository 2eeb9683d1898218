"""Models with random weights whose completions never end early."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen2ForCausalLM

from tests.bench.bench_generation import sample_in_turn
from tests.bench.random_models import config_of, make_model
from tests.bench.work import Work
from trainer.dimensions import dimensions_of
from trainer.tokenizers import load_tokenizer


@pytest.mark.parametrize(
    ("name", "published"), [("0.5B", 494_032_768), ("1.5B", 1_543_714_304)]
)
def test_a_model_has_the_published_number_of_weights(name: str, published: int) -> None:
    config = config_of(name)

    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)

    assert sum(weight.numel() for weight in model.parameters()) == published
    counted = dimensions_of(config.to_dict()).num_parameters
    assert counted == pytest.approx(published, rel=1e-3)


def test_a_model_is_made_once(tmp_path: Path) -> None:
    model = make_model("tiny", tmp_path)
    before = (model / "model.safetensors").stat().st_mtime_ns

    assert make_model("tiny", tmp_path) == model
    assert (model / "model.safetensors").stat().st_mtime_ns == before


def test_one_left_half_made_is_made_anew(tmp_path: Path) -> None:
    model = make_model("tiny", tmp_path)
    (model.parent / "complete").unlink()
    (model / "model.safetensors").unlink()

    assert (make_model("tiny", tmp_path) / "model.safetensors").exists()


def test_its_text_is_that_of_its_tokens(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(make_model("tiny", tmp_path)))

    assert tokenizer.encode("w1 w511 w7") == [1, 511, 7]
    assert tokenizer.decode([1, 511, 7]) == "w1 w511 w7"


@pytest.mark.filterwarnings("ignore:Using a `max_new_tokens`")
def test_every_completion_runs_to_the_limit_whoever_samples_it(tmp_path: Path) -> None:
    model = make_model("tiny", tmp_path)
    work = Work(
        model=model,
        rows=model.parent / "rows.jsonl",
        num_prompts=4,
        group_size=16,
        max_new_tokens=70,
    )

    taken = sample_in_turn(work, num_rounds=1, deadline=None)

    for (step,) in taken:
        assert step.lengths.groups == ((70,) * 16,) * 4
        assert all(64 <= length <= 128 for length in step.lengths.prompts)
