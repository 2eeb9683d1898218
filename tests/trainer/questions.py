"""Questions to a reference in a process of its own."""

from typing import Any

import torch

from trainer.serving.reference_client import Question


def question(**changes: Any) -> Question:
    fields: dict[str, Any] = {
        "input_ids": torch.tensor([[2, 3, 4]]),
        "places": torch.tensor([0, 1]),
        "targets": torch.tensor([3, 4]),
        "temperature": 1.0,
    }
    return Question(**(fields | changes))
