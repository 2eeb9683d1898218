"""A failure is reported in one sentence with a remedy."""

import errno

import pytest
import torch

from trainer.errors import explain


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (torch.OutOfMemoryError("CUDA out of memory.\nmore"), "micro_batch_tokens"),
        (MemoryError(), "Out of memory"),
        (OSError(errno.ENOSPC, "No space left", "/data/x"), "/data/x is full"),
        (ValueError("Set this to that."), "Set this to that."),
        (KeyError("wo"), "KeyError"),
    ],
)
def test_failures_are_sentences(error, sentence):
    assert sentence in explain(error)
    assert "\n" not in explain(error)
