"""A run that saves checkpoints on disk, and says so."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from dashboard.runs.models import Checkpoint
from dashboard.runs.queries import run_directory
from tests.dashboard.runs.stories import Story
from trainer.events import CheckpointSaved


class Saving(Story):
    """`Story` with the files that a trainer writes."""

    @property
    def folder(self) -> Path:
        return run_directory(self.run.pk).checkpoints

    def save(
        self,
        *,
        reward: float = 0.5,
        score: float | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> Checkpoint:
        """After one more step, evaluated with this score where one is given."""
        self.take_steps(1, **{"reward/mean": reward})
        if score is not None:
            self.evaluate(**{"eval/heldout/mean": score})
        name = f"step-{self.step:06d}-attempt-{self.claim.attempt}"
        sha256, num_bytes = write_checkpoint(
            self.folder / name,
            files or {"model/model.safetensors": b"weights at %d" % self.step},
        )
        self._tell(CheckpointSaved, name=name, sha256=sha256, num_bytes=num_bytes)
        return Checkpoint.objects.get(run=self.run, name=name)

    def prune(self, keep_last: int) -> None:
        """As the trainer does."""
        for path in sorted(self.folder.glob("step-*"))[:-keep_last]:
            shutil.rmtree(path)


def write_checkpoint(folder: Path, files: Mapping[str, bytes]) -> tuple[str, int]:
    listing = {}
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        listing[name] = {"sha256": digest, "bytes": len(content)}
    return seal(folder, listing), sum(map(len, files.values()))


def seal(folder: Path, listing: Mapping[str, object]) -> str:
    manifest = json.dumps({"files": listing}).encode()
    (folder / "manifest.json").write_bytes(manifest)
    return hashlib.sha256(manifest).hexdigest()
