"""A checkpoint as a real trainer saves it, on a run's shelf."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from dashboard.runs.models import Checkpoint
from tests.dashboard.runs.checkpoints.saved import Saving
from tests.environment import child_environment
from tests.faults.tiny import ROOT, config_tree, save_model
from trainer.config import RunConfig


def train_checkpoint(saving: Saving, folder: Path, *, lora_rank: int = 0) -> Checkpoint:
    """Of one large step of a tiny model, which becomes the run's base model."""
    save_model(folder / "model")
    tree: dict[str, Any] = config_tree(folder / "model", num_steps=1)
    tree["model"]["lora_rank"] = lora_rank
    tree["optim"]["learning_rate"] = 0.1
    tree["checkpoint"]["every_steps"] = 1
    rows = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(8)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rows.jsonl").write_text(lines)
    (folder / "run.json").write_text(json.dumps(tree))
    subprocess.run(
        [
            *(sys.executable, "-m", "trainer", "run", str(folder / "run.json")),
            *("--out", str(folder / "out")),
        ],
        check=True,
        cwd=ROOT,
        env=child_environment(),
        capture_output=True,
    )
    (saved,) = (folder / "out" / "checkpoints").glob("step-*")
    saving.run.config = RunConfig.model_validate(tree).model_dump(mode="json")
    saving.run.save(update_fields=["config"])
    files = {
        str(path.relative_to(saved)): path.read_bytes()
        for path in saved.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    checkpoint = saving.save(files=files)
    checkpoint.run = saving.run
    return checkpoint
