"""Event logs as a trainer writes them, for tests of those who read them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainer.events import (
    CheckpointSaved,
    Event,
    GroupScored,
    MeasuredCompletion,
    RunFailed,
    RunFinished,
    RunStarted,
    ScoredCompletion,
    StepFinished,
)

START = 1_700_000_000.0


class LogBuilder:
    """Adds events with the right line, attempt and time."""

    def __init__(self, *, attempt: int = 1) -> None:
        self.attempt = attempt
        self.events: list[Event] = []

    def add(self, kind: type[Event], *, step: int, **fields: Any) -> LogBuilder:
        line = len(self.events) + 1
        time = START + 1_000 * self.attempt + line
        self.events.append(
            kind(line=line, attempt=self.attempt, time=time, step=step, **fields)
        )
        return self

    def started(self, *, num_steps: int = 10) -> LogBuilder:
        return self.add(
            RunStarted,
            step=0,
            num_steps=num_steps,
            num_parameters=1_000,
            num_train_rows=8,
            num_eval_rows=0,
            device="cpu",
            versions={},
        )

    def stepped(self, step: int, *, num_groups: int = 2) -> LogBuilder:
        for index in range(num_groups):
            self.add(GroupScored, step=step, **group(index))
        return self.add(StepFinished, step=step, metrics=metrics_of(step))

    def saved(self, step: int) -> LogBuilder:
        name = f"step-{step:06d}-attempt-{self.attempt}"
        return self.add(
            CheckpointSaved, step=step, name=name, sha256="0" * 64, num_bytes=7
        )

    def finished(self, step: int) -> LogBuilder:
        return self.add(RunFinished, step=step)

    def failed(self, error: str) -> LogBuilder:
        return self.add(RunFailed, step=0, error=error, details="")

    @property
    def lines(self) -> list[bytes]:
        return [event.model_dump_json().encode() + b"\n" for event in self.events]

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(self.lines))


def metrics_of(step: int) -> dict[str, float | None]:
    """The same in every attempt, as a deterministic trainer's are."""
    return {"reward/mean": (step % 7) / 10, "loss": -0.1 * step, "kl/mean": None}


def measured(*pieces: str, **values: Any) -> MeasuredCompletion:
    """Token values of a completion of these pieces; <…> is a special token."""
    given: dict[str, Any] = {
        "num_tokens": len(pieces),
        "ids": [100 + place for place in range(len(pieces))],
        "pieces": list(pieces),
        "special": [i for i, piece in enumerate(pieces) if piece.startswith("<")],
        "logprob": [float(f"{-0.12345 - n:.5g}") for n in range(len(pieces))],
        "sampling_logprob": [-0.25] * len(pieces),
        "entropy": [0.5] * len(pieces),
        "kl": None,
        "ratio": [1.0231] * len(pieces),
        "clipped": [0] * len(pieces),
        "advantage": [1.25] * len(pieces),
        "coefficient": [1.2789] * len(pieces),
    }
    return MeasuredCompletion(**given | values)


def group(index: int, *, texts: Iterable[str] = ("yes", "no")) -> dict[str, Any]:
    completions = [
        ScoredCompletion(
            text=text,
            num_tokens=3,
            end_reason="stop",
            reward=float(place),
            rules={"answer": float(place), "format": None},
            advantage=place - 0.5,
            mean_logprob=-1.5,
        )
        for place, text in enumerate(texts)
    ]
    return {
        "prompt_index": index,
        "prompt": f"prompt {index}",
        "answer": None,
        "reward_mean": 0.5,
        "reward_std": 0.7,
        "signal": "mixed",
        "completions": completions,
    }
