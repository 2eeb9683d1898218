"""What went wrong, in a sentence that says what to do."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

import torch

from trainer.disk import is_disk_full
from trainer.model.tokenizers import first_line
from trainer.rewards.workers import ScoringFailed


class Diverged(Exception):
    """Training cannot go on; the text is for the user."""


@dataclass(frozen=True)
class Failure:
    """What ended a run, for its log."""

    sentence: str  # for the user
    details: str = ""  # a traceback

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        return cls(explain(error), "".join(traceback.format_exception(error)))


def explain(error: BaseException) -> str:
    """The sentence for the user; ValueErrors and our own exceptions are one."""
    if isinstance(error, torch.OutOfMemoryError):
        return (
            f"The GPU has no memory left: {first_line(error)} Lower "
            "optim.micro_batch_tokens or rollout.max_batch_rows, or switch "
            "model.gradient_checkpointing on."
        )
    if isinstance(error, MemoryError) or is_out_of_memory(error):
        return (
            "The machine has no memory left. Lower optim.micro_batch_tokens or "
            "rollout.max_batch_rows, or choose a smaller model."
        )
    if is_disk_full(error):
        place = getattr(error, "filename", None) or "the run"
        return (
            f"No space is left on the disk of {place}. Free some, then go on from the "
            "last checkpoint."
        )
    if isinstance(error, ValueError | Diverged | ScoringFailed):
        return str(error)
    return f"{type(error).__name__}: {first_line(error)}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a tensor did not fit, on a GPU or on the machine."""
    # torch tells it of the machine's memory in a RuntimeError's text only
    says_so = "can't allocate memory" in str(error)
    return isinstance(error, torch.OutOfMemoryError) or says_so
