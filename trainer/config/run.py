"""Configuration of a run and its phases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from trainer.config.agreement import complaints
from trainer.config.loss import LossConfig
from trainer.config.objective import AdvantageConfig, ReferenceConfig
from trainer.config.part import Part, about, read_about
from trainer.config.settings import Settings
from trainer.config.task import CurriculumConfig, RewardConfig, RolloutConfig
from trainer.config.training import EvaluationConfig, OptimConfig
from trainer.rewards.spec import needs_sandbox

# The rest belongs to the run as a whole.
CHANGEABLE: dict[str, type[Part]] = {
    "rollout": RolloutConfig,
    "curriculum": CurriculumConfig,
    "reward": RewardConfig,
    "advantage": AdvantageConfig,
    "loss": LossConfig,
    "reference": ReferenceConfig,
    "optim": OptimConfig,
    "evaluation": EvaluationConfig,
}


class Phase(Part):
    """Some steps of a run with settings of their own.

    >>> Phase(name="sft", num_steps=50, changes={"rollout": {"source": "dataset"}})
    """

    name: str = Field(
        pattern=r"^[a-z][a-z0-9_-]{0,39}$", description="Name of the phase in charts."
    )
    num_steps: int = Field(
        ge=1,
        le=10_000_000,
        title="Steps",
        description="Number of steps. The LR schedule spans the phase.",
        json_schema_extra=about(unit="steps"),
    )
    changes: dict[str, dict[str, Any]] = Field(
        {}, description="Settings that differ from those of the run."
    )

    @field_validator("changes")
    @classmethod
    def _parts_may_change(
        cls, changes: dict[str, dict[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        fixed = sorted(set(changes) - set(CHANGEABLE))
        if fixed:
            raise ValueError(
                f'A phase cannot change "{fixed[0]}". It can change '
                f"{', '.join(CHANGEABLE)}."
            )
        if "num_steps" in changes.get("optim", {}):
            raise ValueError(
                "num_steps of a phase belongs next to its name, not in changes.optim. "
                "Move it."
            )
        return {
            part: {
                name: CHANGEABLE[part].value_of(name, value)
                for name, value in values.items()
            }
            for part, values in changes.items()
        }


class RunConfig(Settings):
    """A GRPO run, whole."""

    phases: tuple[Phase, ...] = Field(
        (),
        max_length=100,
        description="Phases of the run, in order. Empty: one phase.",
    )

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        optim = self.optim
        if not self.phases and optim.warmup_steps >= optim.num_steps:
            raise ValueError(
                f"optim.warmup_steps is {optim.warmup_steps}, but the run has only "
                f"{optim.num_steps} steps. Make the warm-up shorter than the run."
            )
        for complaint in complaints(self):
            raise ValueError(complaint)
        self._check_phases()
        return self

    def _check_phases(self) -> None:
        if not self.phases:
            return
        total = sum(phase.num_steps for phase in self.phases)
        if total != self.optim.num_steps:
            raise ValueError(
                f"The phases have {total} steps in total, but optim.num_steps is "
                f"{self.optim.num_steps}. Set it to {total}."
            )
        for phase in self.phases:
            for part, values in phase.changes.items():
                fields = CHANGEABLE[part].model_fields
                named = sorted(set(fields) & set(values))
                fixed = [n for n in named if read_about(fields[n]).get("of_run")]
                if fixed:
                    raise ValueError(
                        f'Phase "{phase.name}" cannot change {part}.{fixed[0]}, which '
                        "is the same for the whole run. Set it for the run."
                    )
            try:
                self._config_of(phase)
            except ValidationError as error:
                fault = error.errors()[0]
                where = ".".join(str(part) for part in fault["loc"])
                raise ValueError(
                    f'Phase "{phase.name}"{f", {where}" if where else ""}: '
                    f"{fault['msg'].removeprefix('Value error, ')}"
                ) from None
        if self.model.quantization == "none":
            return
        for later in self.phase_configs[1:]:
            if later.config.rollout.source == "start":
                raise ValueError(
                    f'Phase "{later.name}" samples from its starting weights, which '
                    f'model.quantization = "{self.model.quantization}" does not '
                    'support. Use rollout.source = "policy", or "none".'
                )

    def _config_of(self, phase: Phase) -> RunConfig:
        tree = self.model_dump(exclude={"phases"})
        for part, values in phase.changes.items():
            tree[part] = {**tree[part], **values}
        tree["optim"]["num_steps"] = phase.num_steps
        return RunConfig.model_validate(tree)

    @property
    def phase_configs(self) -> tuple[PhaseConfig, ...]:
        """The run's phases with the settings of each; a run without is one phase."""
        if not self.phases:
            return (PhaseConfig(name="", first_step=1, config=self),)
        phases, first = [], 1
        for phase in self.phases:
            config = self._config_of(phase)
            phases.append(PhaseConfig(name=phase.name, first_step=first, config=config))
            first += phase.num_steps
        return tuple(phases)

    def config_at(self, step: int) -> RunConfig:
        """Return the settings of the phase that a step of the run is in."""
        begun = [
            phase for phase in self.phase_configs if phase.first_step <= max(step, 1)
        ]
        return begun[-1].config

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest prompt with its longest completion in any phase."""
        return self.data.max_prompt_tokens + max(
            phase.config.longest_completion for phase in self.phase_configs
        )

    @property
    def longest_read(self) -> int:
        """Tokens of the longest sequence that this phase's reference reads."""
        if self.reference.context == "none":
            return self.longest_sequence
        # a completion without a context is read behind the policy's prompt
        prompt = self.reference.max_prompt_tokens
        return max(self.longest_sequence, prompt + self.longest_completion)

    @property
    def runs_code(self) -> bool:
        """True if the environment or a rule of any phase runs code, which takes a
        sandbox.
        """
        return self.environment.runs_code or any(
            needs_sandbox(recipe)
            for phase in self.phase_configs
            for recipe in phase.config.reward.recipes
        )

    @property
    def has_curriculum(self) -> bool:
        """True if prompts are drawn by their pass rates in any phase."""
        return any(
            phase.config.curriculum.kind != "off" for phase in self.phase_configs
        )

    @property
    def samples_ahead(self) -> bool:
        """True if the policy is sampled while it is trained, in any phase."""
        return any(
            phase.config.rollout.one_step_off
            and phase.config.rollout.source == "policy"
            for phase in self.phase_configs
        )

    @property
    def has_snapshot(self) -> bool:
        """True if what samples has weights of its own, for they may be read while the
        policy's move. vLLM in a child of the trainer has been handed them.
        """
        return self.rollout.engine != "vllm" and self.samples_ahead


@dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """A phase of a run as the loop meets it. Steps count from 1 over the whole run."""

    name: str
    first_step: int
    config: RunConfig

    @property
    def last_step(self) -> int:
        return self.first_step + self.config.optim.num_steps - 1

    @property
    def goes_on(self) -> bool:
        """True if it begins with another phase's weights."""
        return self.first_step > 1

    @property
    def reference_kind(self) -> Literal["none", "base", "frozen", "server"]:
        """The kind that "auto" resolves to.

        Adapters switched off are the reference for nothing. They are not the weights
        that a later phase begins with, so it has a copy of those; but 4-bit weights
        cannot take up merged adapters.
        """
        kind, model = self.config.reference.kind, self.config.model
        if kind != "auto":
            return kind
        if not self.config.has_reference:
            return "none"
        if self.config.reference.model is not None:
            return "frozen"
        keeps_base = not self.goes_on or model.quantization != "none"
        return "base" if model.lora_rank > 0 and keeps_base else "frozen"

    @property
    def reference_moves(self) -> bool:
        """True if a frozen reference takes over weights that were trained."""
        reference = self.config.reference
        often = reference.reset_every_steps or reference.mix_every_steps
        return bool(often) or (self.goes_on and reference.model is None)
