"""A small real model, and what anyone's program makes of its folder."""

import sys
from pathlib import Path

from tests.environment import run_here
from tests.faults.tiny import save_model


def model_files(folder: Path) -> dict[str, bytes]:
    """The files of a model of random weights, as a checkpoint has them."""
    save_model(folder)
    return {f"model/{path.name}": path.read_bytes() for path in folder.iterdir()}


def generate(folder: Path, text: str) -> str:
    """What transformers alone makes of the folder."""
    program = (
        "import sys; from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "folder, text = sys.argv[1:]\n"
        "model = AutoModelForCausalLM.from_pretrained(folder)\n"
        "tokenizer = AutoTokenizer.from_pretrained(folder)\n"
        "ids = tokenizer(text, return_tensors='pt').input_ids\n"
        "out = model.generate(ids, max_new_tokens=4, do_sample=False)\n"
        "print(tokenizer.decode(out[0]))\n"
    )
    done = run_here(sys.executable, "-c", program, str(folder), text, check=True)
    return done.stdout.strip()
