"""Checkpoints as the trainer leaves them."""

import hashlib
import json
from pathlib import Path

from dashboard.runs.queries import RunDirectory


def save(directory: RunDirectory, step: int, *, attempt: int = 1) -> Path:
    """A checkpoint as the trainer leaves it."""
    folder = directory.checkpoints / f"step-{step:06d}-attempt-{attempt}"
    (folder / "model").mkdir(parents=True)
    content = b"weights at %d" % step
    (folder / "model" / "model.safetensors").write_bytes(content)
    files = {
        "model/model.safetensors": {
            "sha256": hashlib.sha256(content).hexdigest(),
            "bytes": len(content),
        }
    }
    (folder / "manifest.json").write_text(json.dumps({"files": files}))
    return folder
