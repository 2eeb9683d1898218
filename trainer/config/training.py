"""Settings of optimizer, evaluation, checkpoints, logging and processes."""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from trainer.config.part import Auto, NoEffect, Part, When, about

IS_ON_ONE_MACHINE: When = {"distributed.where": ["machine"]}
NOT_EVALUATED: NoEffect = {"evaluation is off": {"evaluation.every_steps": [0]}}


class OptimConfig(Part):
    """Optimizer, learning rate schedule and batch sizes."""

    num_steps: int = Field(
        100,
        ge=1,
        le=10_000_000,
        title="Steps",
        description="Training steps, one batch each.",
        json_schema_extra=about(unit="steps", main=1, may_change=True),
    )
    learning_rate: float = Field(
        1e-6,
        gt=0,
        le=1,
        description="Peak learning rate of AdamW.",
        json_schema_extra=about(main=5),
    )
    optimizer: Literal["adamw", "adamw_8bit"] = Field(
        "adamw",
        description="adamw_8bit stores its moments in 8 bits (bitsandbytes).",
        json_schema_extra=about(
            section="AdamW",
            choices={
                "adamw": "moments with the data type of the weights",
                "adamw_8bit": "moments in 8 bits",
            },
            fork="the checkpoint contains this optimizer's moments",
        ),
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's first moment decay.")
    beta2: float = Field(0.999, ge=0, lt=1, description="AdamW's second moment decay.")
    weight_decay: float = Field(0.0, ge=0, le=1, description="AdamW's weight decay.")
    max_grad_norm: float | None = Field(
        1.0,
        gt=0,
        title="Max gradient norm",
        description="Gradient clipping: the gradient is scaled down to this norm. "
        'Empty (in TOML, "none"): no clipping.',
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="Learning rate schedule after warm-up.",
        json_schema_extra=about(
            section="Learning rate",
            choices={
                "constant": "no decay",
                "linear": "linear decay",
                "cosine": "cosine decay",
            },
        ),
    )
    warmup_steps: int = Field(
        0,
        ge=0,
        title="Warm-up",
        description="Steps in which the learning rate rises from 0.",
        json_schema_extra=about(unit="steps"),
    )
    final_lr_fraction: float = Field(
        0.0,
        ge=0,
        le=1,
        title="Final learning rate",
        description="Learning rate at the last step as a share of the peak.",
        json_schema_extra=about(
            no_effect={
                "the learning rate is constant": {"optim.schedule": ["constant"]}
            }
        ),
    )
    updates_per_batch: int = Field(
        1,
        ge=1,
        le=64,
        description="Passes over each batch of completions (mu).",
        json_schema_extra=about(unit="updates", section="Updates"),
    )
    minibatches: int = Field(
        1,
        ge=1,
        le=4_096,
        description="Minibatches per batch, split by prompts. Each gives one update "
        "per pass.",
        json_schema_extra=about(unit="minibatches"),
    )
    micro_batch_tokens: Auto[Annotated[int, Field(ge=16, le=16_777_216)]] = Field(
        "auto",
        description="Tokens per micro-batch, padding included. It changes memory and "
        "speed, not the result. auto: what fits into free GPU memory; 8,192 on a "
        "CPU.",
        json_schema_extra=about(unit="tokens"),
    )
    reset_every_steps: int = Field(
        0,
        ge=0,
        title="Reset the optimizer every",
        description="Steps between resets of AdamW's moments. 0: never.",
        json_schema_extra=about(unit="steps", section="Stability"),
    )
    max_nonfinite: int = Field(
        3,
        ge=1,
        le=1_000,
        title="Non-finite updates",
        description="After this many non-finite losses or gradients in a row, the run "
        "returns to its last checkpoint with half the learning rate. The "
        "second time, it fails.",
        json_schema_extra=about(unit="updates"),
    )


class EvaluationConfig(Part):
    """Held-out evaluation during the run."""

    every_steps: int = Field(
        20,
        ge=0,
        title="Evaluate every",
        description="Steps between evaluations, plus one before the first step and "
        "one after the last. 0 turns evaluation off.",
        json_schema_extra=about(unit="steps", may_change=True),
    )
    samples_per_prompt: int = Field(
        1,
        ge=1,
        le=1_024,
        json_schema_extra=about(unit="completions", no_effect=NOT_EVALUATED),
        title="Samples per held-out prompt",
        description="Completions sampled for each held-out prompt.",
    )
    temperature: float = Field(
        1.0,
        ge=0,
        le=5,
        title="Evaluation temperature",
        description="Sampling temperature. 0: greedy decoding.",
        json_schema_extra=about(no_effect=NOT_EVALUATED),
    )
    sets: dict[str, str] = Field(
        {},
        description="Additional held-out sets: a name and a JSONL file each.",
    )

    @field_validator("sets")
    @classmethod
    def _names_fit_into_metrics(cls, sets: dict[str, str]) -> dict[str, str]:
        for name, path in sets.items():
            if not re.fullmatch("[a-z0-9_]{1,40}", name) or name == "heldout":
                raise ValueError(
                    f'"{name}" is not a valid name for a held-out set. Use up to 40 '
                    "of a-z, 0-9 and _, but not the reserved name heldout."
                )
            if not path:
                raise ValueError(f'Held-out set "{name}" has no file. Name one.')
        return sets


class CheckpointConfig(Part):
    """Checkpoints of the run."""

    every_steps: int = Field(
        20,
        ge=0,
        title="Checkpoint every",
        description="Steps between checkpoints. 0 saves only at the end and on stop.",
        json_schema_extra=about(unit="steps", may_change=True),
    )
    keep_last: int = Field(
        2,
        ge=1,
        le=1_000,
        title="Checkpoints kept",
        description="Number of newest checkpoints to keep. Older ones are deleted.",
        json_schema_extra=about(unit="checkpoints", may_change=True),
    )


class LoggingConfig(Part):
    """Contents of the event log."""

    groups_every_steps: int = Field(
        1,
        ge=1,
        title="Log groups every",
        description="Steps between stored groups with all their completions.",
        json_schema_extra=about(unit="steps", may_change=True),
    )
    token_groups: int = Field(
        2,
        ge=0,
        le=64,
        title="Groups with token values",
        description="Groups per step whose token values are stored, those with "
        "different rewards first. 0: none.",
        json_schema_extra=about(unit="groups", may_change=True),
    )
    tokens_every_steps: int = Field(
        10,
        ge=1,
        title="Log token values every",
        description="Steps between stored token values, plus the first step. Only at "
        "steps that also store groups.",
        json_schema_extra=about(
            unit="steps",
            no_effect={"no token values are stored": {"logging.token_groups": [0]}},
            may_change=True,
        ),
    )
    mismatch: bool = Field(
        True,
        title="Log sampler mismatch",
        description="Store the gap between the log-probs of sampler and trainer.",
        json_schema_extra=about(
            no_effect={"no completions are sampled": {"rollout.source": ["dataset"]}},
        ),
    )

    budget_cost: float | None = Field(
        None,
        gt=0,
        le=1e12,
        title="Budget",
        description="Raise an alert when the run has cost more, in the currency of the "
        "team's prices. The run goes on. Empty: no alert.",
        json_schema_extra=about(section="Cost"),
    )

    def keeps_groups(self, step: int) -> bool:
        return step % self.groups_every_steps == 0

    def keeps_tokens(self, step: int) -> bool:
        """Return whether tokens are kept, for which their group must be kept too."""
        is_due = step == 1 or step % self.tokens_every_steps == 0
        return self.token_groups > 0 and is_due and self.keeps_groups(step)


class DistributedConfig(Part):
    """Machines, processes and threads of a run."""

    where: Literal["machine", "ray"] = Field(
        "machine",
        description="Where the run trains. ray: on the nodes of a Ray cluster, which "
        "the workers find by COHORT_RAY_ADDRESS.",
        json_schema_extra=about(
            choices={
                "machine": "on the machine of the worker that takes it",
                "ray": "on the nodes of a Ray cluster",
            },
        ),
    )
    num_nodes: int = Field(
        1,
        ge=1,
        le=256,
        title="Nodes",
        description="Number of nodes of the Ray cluster that train the model together.",
        json_schema_extra=about(
            unit="nodes",
            no_effect={"the run trains on one machine": IS_ON_ONE_MACHINE},
        ),
    )
    num_processes: int = Field(
        1,
        ge=1,
        le=1_024,
        title="Processes",
        description="Number of processes per machine that train the model together, "
        "each on its own GPU. torchrun's number overrides it.",
        json_schema_extra=about(unit="processes", cluster_title="Processes per node"),
    )
    timeout_seconds: int = Field(
        3_600,
        ge=10,
        le=86_400,
        title="Timeout",
        description="Time that a process waits for another before the run fails.",
        json_schema_extra=about(
            unit="seconds",
            no_effect={
                "there is one process": {
                    "distributed.num_processes": [1],
                    "distributed.num_nodes": [1],
                }
            },
        ),
    )
    num_threads: int | None = Field(
        None,
        ge=1,
        le=1_024,
        title="Threads",
        description=(
            "CPU threads per process. Empty: all cores, divided among the processes."
        ),
        json_schema_extra=about(unit="threads"),
    )

    @property
    def num_ranks(self) -> int:
        """Processes on all nodes; torchrun's number may be another."""
        return self.num_nodes * self.num_processes


def learning_rate(step: int, config: OptimConfig) -> float:
    """Learning rate of a step, steps counted from 1.

    It rises over the W warm-up steps as step/(W+1), is the peak at step W+1 and then
    follows the schedule to peak · final_lr_fraction at the last step.
    """
    assert step >= 1
    warmup, last = config.warmup_steps, config.num_steps
    if step <= warmup:
        return config.learning_rate * step / (warmup + 1)
    span = last - warmup - 1
    progress = min((step - warmup - 1) / span, 1.0) if span > 0 else 0.0
    match config.schedule:
        case "constant":
            share = 1.0
        case "linear":
            share = 1.0 - progress
        case "cosine":
            share = (1 + math.cos(math.pi * progress)) / 2
    floor = 1.0 if config.schedule == "constant" else config.final_lr_fraction
    return config.learning_rate * (floor + (1 - floor) * share)
