"""A question on its way to a reference: whole, or refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from tests.trainer.questions import question
from trainer.serving.reference_client import pack_question, unpack_question


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input_ids": torch.tensor([[2, 36, 4]])}, "input_ids must be at least 0 and"),
        ({"input_ids": torch.tensor([[2, -1, 4]])}, "below 36; got -1 to 4"),
        ({"input_ids": torch.tensor([2, 3, 4])}, "must be [B, L]"),
        ({"input_ids": torch.zeros(0, 3)}, "must be [B, L] and not empty"),
        ({"input_ids": torch.zeros(1, 9)}, "longer than this model's 8"),
        ({"places": torch.tensor([0, 3])}, "places must be at least 0 and below 3"),
        ({"targets": torch.tensor([3, 99])}, "targets must be at least 0"),
        ({"targets": torch.tensor([3])}, "places and targets [N]"),
        ({"places": torch.tensor([0.0, 1.0])}, "must be whole numbers"),
        ({"temperature": 0.0}, "temperature must be one number above 0"),
        ({"temperature": float("nan")}, "temperature must be one number above 0"),
        ({"temperature": float("inf")}, "temperature must be one number above 0"),
    ],
)
def test_a_question_the_model_cannot_take_is_refused(
    changes: dict[str, Any], words: str
) -> None:
    body = pack_question(question(**changes))

    with pytest.raises(ValueError, match=re.escape(words)):
        unpack_question(body, vocabulary=36, max_length=8)


def test_a_question_arrives_as_it_was_sent() -> None:
    sent = question(temperature=0.1)

    got = unpack_question(pack_question(sent), vocabulary=36, max_length=8)

    assert torch.equal(got.input_ids, sent.input_ids)
    assert torch.equal(got.places, sent.places)
    assert torch.equal(got.targets, sent.targets)
    assert got.temperature == sent.temperature
