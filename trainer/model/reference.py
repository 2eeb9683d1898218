"""The model that the KL is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from trainer.config import RunConfig
from trainer.config.run import Stage
from trainer.model.base_reference import BaseReference
from trainer.model.fingerprint import model_fingerprint
from trainer.model.frozen_reference import FrozenReference
from trainer.model.packing import MicroBatch
from trainer.model.policy import Policy, load_policy
from trainer.serving.reference_client import ServerReference
from trainer.serving.token import read_token


class Reference(Protocol):
    """Gives log-probs that do not depend on the step's update."""

    @property
    def has_moved(self) -> bool:
        """Whether a checkpoint must hold its weights."""
        ...

    def add_logprobs(
        self, micro_batches: Sequence[MicroBatch], *, temperature: float
    ) -> None:
        """Fill in each micro-batch's `reference_logprobs`."""
        ...

    def after_step(self, step: int, policy: Policy) -> None:
        """Reset to the policy or move towards it, where this step is due for it.

        Steps count from 1, since the beginning of the phase.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write the weights of a reference that has moved into a new folder."""
        ...


def make_reference(
    stage: Stage, policy: Policy, *, saved: Path | None = None
) -> Reference | None:
    """The reference that a run or phase asks for; None where it asks for none.

    Args:
        stage: the phase, or the run where it has none. A frozen reference of a phase
            that goes on from another one's weights is the policy as it is now, not the
            starting model.
        policy: the policy it stands beside.
        saved: the folder that `save` wrote, when resuming with one that had moved.

    Raises:
        ValueError: the model cannot be loaded or the server cannot be used.
    """
    config = stage.config
    match stage.reference_kind:
        case "none":
            return None
        case "base":
            whole = policy.whole
            if config.rollout.one_step_off and whole is not policy:
                # it is sampled from at the same time, with its adapters on
                whole = whole.copied(shares_fixed=True)
            return BaseReference(whole)
        case "server":
            return reference_server(config)
        case "frozen":
            start = load_start(config, will_move=stage.reference_moves)
            reference = FrozenReference(
                start, config.reference, has_moved=stage.goes_on
            )
            if saved is not None:
                reference.restore(saved)
            elif stage.goes_on:
                reference.become(policy)
            return reference


def reference_server(config: RunConfig) -> ServerReference:
    """The server that `config.reference` names, asked for its model.

    Raises:
        ValueError: it is not there, or holds another model.
    """
    url, token_file = config.reference.url, config.reference.token_file
    assert url is not None
    assert token_file is not None
    reference = ServerReference(
        url,
        token=read_token(Path(token_file)),
        fingerprint=model_fingerprint(
            config.model.path, revision=config.model.revision
        ),
    )
    reference.check_model()
    return reference


def load_start(config: RunConfig, *, will_move: bool = False) -> Policy:
    """The model that the run started from, held fixed.

    One whose weights `will_move` is not quantized: 4 bits cannot take them over.
    """
    changes: dict[str, Any] = {"lora_rank": 0, "gradient_checkpointing": False}
    if will_move:
        changes["quantization"] = "none"
    start = load_policy(config.model.model_copy(update=changes))
    start.model.eval().requires_grad_(requires_grad=False)
    return start
