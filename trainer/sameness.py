"""What all processes of a run must find alike, each on its own host.

A host with an older copy of a file would train on other prompts, or bring its part of
other weights, and nothing would ever say so.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Mapping

import torch
import transformers

from trainer.config import RunConfig, without_model_paths
from trainer.data import Prompt
from trainer.model.policy import Policy
from trainer.parallel.world import World

# Rows read of each weight; a training step moves nearly every number of it.
_NUM_ROWS = 8


def check_same_setup(world: World, config: RunConfig) -> None:
    """Refuse processes that were asked for different runs, or would compute otherwise.

    It comes before all that the configuration has processes ask one another: with
    another engine, one would wait for an answer that nobody is going to give.

    Raises:
        ValueError: naming the first process that has something else than the first.
    """
    if world.size > 1:
        tree = without_model_paths(config.model_dump(mode="json"))
        own = {
            # A folder has a place of its own on each host; `check_same_content`
            # compares what the model is.
            "run configuration": _digest([json.dumps(tree).encode()]),
            "torch": str(torch.__version__),
            "transformers": str(transformers.__version__),
        }
        _compare(world, own)


def check_same_content(
    world: World, *, policy: Policy, prompts: Iterable[Prompt]
) -> None:
    """Refuse processes that have read different files.

    Raises:
        ValueError: naming the first process that has something else than the first.
    """
    if world.size > 1:
        own = {
            "rows": _digest(_prompt_bytes(prompts)),
            "model": _digest(_weight_bytes(policy)),
        }
        _compare(world, own)


def _compare(world: World, own: Mapping[str, str]) -> None:
    first, *others = world.gather(own)
    for rank, other in enumerate(others, start=1):
        for name, value in other.items():
            if value != first[name]:
                raise ValueError(
                    f"Process {rank} of {world.size} has another {name} than process "
                    f"0 ({value[:12]}, not {first[name][:12]}). Give all hosts the "
                    "same files and packages."
                )


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _prompt_bytes(prompts: Iterable[Prompt]) -> Iterable[bytes]:
    for prompt in prompts:
        yield repr((prompt.index, prompt.text, prompt.row.answer)).encode()
        yield repr(prompt.row.columns).encode()
        yield array("q", prompt.token_ids).tobytes()


def _weight_bytes(policy: Policy) -> Iterable[bytes]:
    for name, weight in policy.model.named_parameters():
        yield repr((name, weight.shape)).encode()
        rows = weight.detach()[:_NUM_ROWS].to(torch.bfloat16)
        yield rows.view(torch.int16).cpu().numpy().tobytes()
