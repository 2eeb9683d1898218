"""The state of a run, and changes of its settings while it trains."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from trainer.config import Change, ChangeList, RunConfig, change_settings
from trainer.config.run import Stage
from trainer.console import say
from trainer.data import Prompt
from trainer.events import SettingsChanged
from trainer.footprint import longest_sequence
from trainer.model.budget import MemoryBudget, memory_of
from trainer.model.microbatches import Minibatch
from trainer.model.packing import MicroBatch
from trainer.model.policy import Policy
from trainer.output.journal import Journal
from trainer.output.log import EventLog
from trainer.parallel.fsdp import ShardedPolicy
from trainer.parallel.world import ALONE, World
from trainer.phases import PhaseState, enter_phase
from trainer.recovery import Setbacks
from trainer.rewards.session import current_session
from trainer.rewards.spec import needs_models
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.cache import bytes_per_token
from trainer.rollout.engine import HoldingEngine, RolloutEngine, Slowed
from trainer.rollout.prefetch import Prefetch
from trainer.scoring import HERE, Scorer

HELD_OUT = "heldout"  # the set that is split off the run's own rows


@dataclass(kw_only=True)
class Training:
    """A run from its beginning or its checkpoint to its end, phase after phase."""

    config: RunConfig
    policy: Policy
    engine: RolloutEngine  # samples from the policy
    train_prompts: Sequence[Prompt]
    held_out: Sequence[Prompt]
    eval_files: Mapping[str, Sequence[Prompt]]  # of further sets, by file
    log: EventLog
    out: Path
    checkpoints: Path
    epoch: int
    done_steps: int
    newest_checkpoint: Path | None  # where a rollback goes back to
    lives: Path | None = None  # folder of all lives' folders, `out` among them
    world: World = ALONE
    scorer: Scorer = HERE
    setbacks: Setbacks = field(default_factory=Setbacks)
    applied_changes: set[int] = field(default_factory=set)  # by number
    has_unread_changes: bool = False
    _stage: PhaseState | None = None
    _slowed: list[Slowed] = field(default_factory=list)  # not yet told of

    def __post_init__(self) -> None:
        self.journal = Journal(self.log, self.policy.tokenizer)
        self.budget = MemoryBudget(
            self.config.optim.micro_batch_tokens,
            on_halved=self._tell_of_memory,
            world=self.world,
            shared=self.policy if isinstance(self.policy, ShardedPolicy) else None,
        )
        self.ahead = Prefetch(self.policy.device)
        if isinstance(self.engine, TransformersEngine):
            self.engine.on_slowed = self._slowed.append

    @property
    def stage(self) -> PhaseState:
        """The phase at hand."""
        assert self._stage is not None
        return self._stage

    @property
    def eval_sets(self) -> dict[str, Sequence[Prompt]]:
        """The held-out sets of the phase at hand that have prompts, by name."""
        further = self.stage.config.evaluation.sets
        sets = {HELD_OUT: self.held_out} | {
            name: self.eval_files[file] for name, file in further.items()
        }
        return {name: prompts for name, prompts in sets.items() if prompts}

    def enter(self, stage: Stage, *, saved: Path | None) -> None:
        """Begin a phase, or go on in it from a checkpoint; the last one is let go."""
        self._stage = None
        gc.collect()  # its models and moments, before there are others
        torch.cuda.empty_cache()
        self._stage = enter_phase(
            stage,
            policy=self.policy,
            engine=self.engine,
            prompts=self.train_prompts,
            saved=saved,
            on_slowed=self._slowed.append,
        )
        self.budget.begin_phase(
            stage.config.optim.micro_batch_tokens, first_step=stage.first_step
        )

    def take_settings(self, config: RunConfig) -> None:
        """Go on with settings of which none went into what is held."""
        self.config = config
        if self._stage is None:
            return
        first = self._stage.stage.first_step
        self._stage.stage = next(s for s in config.stages if s.first_step == first)

    def sync_weights(self) -> None:
        """Make whatever samples from the policy sample from its present weights."""
        self.stage.source.sync_weights()
        if self.stage.config.rollout.source != "policy":
            self.engine.sync_weights()  # which evaluation samples with

    def close(self) -> None:
        """Let go of what samples."""
        if isinstance(self.engine, HoldingEngine):
            self.engine.close()

    def fit_to_memory(self, work: Callable[[Sequence[MicroBatch]], object]) -> None:
        """Choose what goes through a GPU at once, by what a phase's passes take."""
        stage, policy, config = self.stage, self.policy, self.stage.config
        memory = memory_of(policy.device)
        if memory is None:
            return

        def measured(micro_batches: Sequence[MicroBatch]) -> None:
            work(micro_batches)
            stage.optimizer.clear()

        wanted = 0
        if config.rollout.one_step_off and config.rollout.engine == "transformers":
            rows = -(-config.completions_per_step // self.world.size)
            rows = min(rows, config.rollout.max_batch_rows)
            token = bytes_per_token(policy.model.config, policy.model.dtype)
            wanted = round(1.1 * rows * longest_sequence(config) * token)
        sizes = self.budget.choose(
            policy,
            config,
            memory,
            measured,
            later_bytes=stage.optimizer.missing_bytes,
            beside_bytes=wanted,
        )
        if sizes is not None:
            kind = "with" if sizes.checkpointing else "without"
            say(
                f"the GPU's free memory holds micro-batches of {sizes.tokens:,} tokens "
                f"{kind} gradient checkpointing"
            )

    def _tell_of_memory(self, tokens: int, reason: str) -> None:
        self.journal.warn(
            "out_of_memory",
            f"Memory ran out ({reason}), so the step was done again with at most "
            f"{tokens} tokens at once, and so are all that follow; results are the "
            f"same. Set optim.micro_batch_tokens to {tokens} to spare later runs this.",
            value=float(tokens),
        )

    def sample_kl(self, minibatches: Sequence[Minibatch], *, step: int) -> None:
        """Ask the start about a sample of a batch, where the loss has no reference."""
        if self.stage.kl_sample is None:
            return
        reason = self.stage.kl_sample.add_logprobs(
            minibatches,
            step=step,
            temperature=self.stage.config.logprob_temperature,
            max_tokens=self.budget.tokens,
        )
        if reasons := [each for each in self.world.gather(reason) if each]:
            torch.cuda.empty_cache()
            self.stage.kl_sample = None
            self.journal.warn(
                "kl_not_measured",
                f"Memory ran out ({reasons[0]}) while KL was measured, so it is no "
                "longer measured. Training goes on as before.",
            )

    def tell_of_sampling(self) -> None:
        """Warn where the model became slower, in any process, once all have sampled."""
        if self.policy.slowed:
            self.journal.warn(
                "engine_fallback",
                f"{self.policy.slowed}. Updates go on in a slower way, with the same "
                "results.",
            )
            self.policy.slowed = ""
        # another thread may sample ahead, and add to them meanwhile
        own = [self._slowed.pop(0) for _ in range(len(self._slowed))]
        found = self.world.gather(own)
        told = [(each, rank) for rank, own in enumerate(found) for each in own]
        halved = [each for each in told if each[0].code == "out_of_memory"]
        if halved:
            slowed, rank = min(halved, key=lambda each: each[0].rows)
            self.journal.warn(
                slowed.code,
                f"Memory ran out while sampling{self._of(rank)} ({slowed.reason}), so "
                f"from here on at most {slowed.rows} completions are sampled at once. "
                f"Set rollout.max_batch_rows to {slowed.rows} to spare later runs "
                "this.",
                value=float(slowed.rows),
            )
        for slowed, rank in told:
            if slowed.code == "engine_fallback":
                self.journal.warn(
                    slowed.code,
                    f"The faster way to sample failed{self._of(rank)} "
                    f"({slowed.reason}). Sampling goes on with {slowed.way}.",
                )

    def _of(self, rank: int) -> str:
        return f" in process {rank}" if self.world.size > 1 else ""

    def tell_of_judges(self) -> None:
        """Warn of models that could not judge, in any process, each reason once."""
        recipes = [
            recipe
            for stage in self.config.stages
            for recipe in stage.config.reward.recipes
        ]
        if not any(needs_models(recipe) for recipe in recipes):
            return
        found = self.world.gather(current_session().take_warnings())
        for text in dict.fromkeys(chain.from_iterable(found)):
            self.journal.warn("judge", text)

    @property
    def task_digest(self) -> str:
        """SHA-256 of what a batch sampled ahead depends on, beside the weights.

        How many scores may fail and who scores them changes none of them.
        """
        config = self.stage.config
        reward = config.reward.model_dump(
            mode="json", exclude={"max_error_share", "num_workers"}
        )
        rollout = config.rollout.model_dump(mode="json")
        tree = [config.seed, rollout, reward, self._prompts_digest]
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()

    @cached_property
    def _prompts_digest(self) -> str:
        digest = hashlib.sha256()
        for prompt in self.train_prompts:
            told = (prompt.index, prompt.token_ids, prompt.row.answer)
            digest.update(repr((*told, prompt.row.columns)).encode())
        return digest.hexdigest()

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds beside weights, optimizer and reference."""
        return {
            "alarms": self.journal.alarms.state(),
            "memory": self.budget.state(),
            "setbacks": self.setbacks.state(),
            "phase": self.stage.state(),
            **({} if self.ahead.batch is None else {"task": self.task_digest}),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on as a checkpoint left the run; `enter` restores the phase."""
        self.journal.alarms.load_state(state["alarms"])
        self.budget.load_state(state["memory"])
        self.setbacks.load_state(state["setbacks"])


CHANGES = "changes.json"  # in the folder of the event log


def apply_changes(training: Training) -> None:
    """Apply the changes of settings that are due after the last step, each once.

    A change that an earlier attempt applied takes effect at the same step again, so a
    resumed run repeats it exactly. It is logged again if no checkpoint holds it.
    """
    path, step = training.out / CHANGES, training.done_steps
    try:
        found = training.world.from_main(lambda: read_changes(path))
    except ValueError as error:
        if not training.has_unread_changes:
            training.has_unread_changes = True
            training.journal.warn("changes", f"{CHANGES} cannot be read: {error}")
        return
    for change in found:
        due = step if change.after_step is None else change.after_step
        if change.number in training.applied_changes or due > step:
            continue
        training.applied_changes.add(change.number)
        training.take_settings(change_settings(training.config, change.settings))
        if due == step:
            training.log.add(
                SettingsChanged,
                step=step,
                number=change.number,
                settings=change.settings,
            )
            training.log.flush()


def read_changes(path: Path) -> tuple[Change, ...]:
    """In their order; none where there is no such file."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return ()
    changes = ChangeList.model_validate_json(text).changes
    return tuple(sorted(changes, key=lambda change: change.number))
