"""Handles and state of a run, and changes of its settings during training."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer.config import Change, ChangeList, RunConfig, change_settings
from trainer.config.run import PhaseConfig
from trainer.console import print_line
from trainer.curriculum import Beliefs, right_of
from trainer.data import Prompt, PromptRenderer
from trainer.events import SettingsChanged
from trainer.model.budget import MemoryBudget, memory_of
from trainer.model.microbatches import Minibatch
from trainer.model.packing import MicroBatch
from trainer.model.policy import Policy
from trainer.output.checkpoint import saved_step
from trainer.output.journal import Journal
from trainer.output.log import EventLog
from trainer.parallel.world import World
from trainer.rewards.session import Closes, current_session
from trainer.rewards.spec import needs_models
from trainer.rollout.cache import bytes_per_token
from trainer.rollout.engine import RolloutEngine, Slowed
from trainer.rollout.prefetch import Prefetch
from trainer.rollout.select import lasting_engine, uses_own_decoder
from trainer.run.outcome import UpdateResult
from trainer.run.phases import PhaseState, make_phase
from trainer.scoring import Scorer
from trainer.types import Group

HELD_OUT = "heldout"  # the set that is split off the run's own rows
# Compiling takes about 10 s on a GPU, and spares a 0.5B model 80 ms of a step.
COMPILED_STEPS = 200
ROLLED_BACK_RATE = 0.5  # of the learning rate, once a run went back


@dataclass(frozen=True, kw_only=True)
class RunPaths:
    """The paths that a run reads and writes."""

    config: Path
    out: Path
    checkpoints: Path
    resume_from: Path | None
    attempt: int
    passed_over: Sequence[str] = ()  # reasons for skipping newer checkpoints
    attempts: Path | None = None  # folder of all attempts, `out` among them

    @property
    def newest_checkpoint(self) -> Path | None:
        return self.resume_from

    @property
    def done_steps(self) -> int:
        return 0 if self.resume_from is None else saved_step(self.resume_from)


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """All prompts of a run, rendered."""

    train: Sequence[Prompt]
    held_out: Sequence[Prompt]
    eval_files: Mapping[str, Sequence[Prompt]]  # of further sets, by file

    def __iter__(self) -> Iterator[Prompt]:
        further = chain.from_iterable(self.eval_files.values())
        return chain(self.train, self.held_out, further)

    def eval_sets(self, config: RunConfig) -> dict[str, Sequence[Prompt]]:
        """Return the held-out sets of a phase that have prompts, by name."""
        further = config.evaluation.sets
        sets = {HELD_OUT: self.held_out} | {
            name: self.eval_files[file] for name, file in further.items()
        }
        return {name: prompts for name, prompts in sets.items() if prompts}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of those that are trained on."""
        digest = hashlib.sha256()
        for prompt in self.train:
            values = (prompt.index, prompt.token_ids, prompt.row.answer)
            digest.update(repr((*values, prompt.row.columns)).encode())
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Run:
    """The objects that a process of a run holds from its start to its end."""

    world: World
    policy: Policy
    engine: RolloutEngine  # samples from the policy
    scorer: Scorer
    prefetch: Prefetch
    renderer: PromptRenderer
    prompts: Prompts
    paths: RunPaths
    log: EventLog
    journal: Journal
    slowed: list[Slowed] = field(default_factory=list)  # not yet warned of

    def close(self) -> None:
        """Let go of processes, or servers, that sample."""
        if isinstance(self.engine, Closes):
            self.engine.close()


@dataclass
class Setbacks:
    """Counts skipped updates in a row, and how often they sent the run back."""

    num_skipped: int = 0  # in a row, the last update included
    num_rollbacks: int = 0

    def count(self, updates: Sequence[UpdateResult], *, limit: int) -> bool:
        """Take in a step's updates; whether `limit` in a row were skipped."""
        is_over = False
        for result in updates:
            self.num_skipped = self.num_skipped + 1 if result.is_skipped else 0
            is_over = is_over or self.num_skipped >= limit
        return is_over

    def roll_back(self) -> None:
        self.num_skipped = 0
        self.num_rollbacks += 1

    @property
    def rate_factor(self) -> float:
        """The factor of the learning rate."""
        return ROLLED_BACK_RATE**self.num_rollbacks


@dataclass(kw_only=True)
class RunState:
    """The progress of a run; a checkpoint holds it, beside the policy's weights."""

    config: RunConfig  # as the changes of its settings have left it
    budget: MemoryBudget
    done_steps: int = 0
    newest_checkpoint: Path | None = None  # where a rollback goes back to
    setbacks: Setbacks = field(default_factory=Setbacks)
    applied_changes: set[int] = field(default_factory=set)  # by number
    has_unread_changes: bool = False
    current: PhaseState | None = None  # None: no phase has begun
    beliefs: Beliefs | None = None  # about the prompts; None: there is no curriculum
    # Tokens sampled in each step since the process began, and seconds that it took.
    sampled: list[tuple[float, float]] = field(default_factory=list)

    @property
    def phase(self) -> PhaseState:
        """The phase at hand."""
        assert self.current is not None
        return self.current

    def take_settings(self, config: RunConfig) -> None:
        """Go on with settings of which none went into what is held."""
        self.config = config
        if self.current is None:
            return
        first = self.current.phase_config.first_step
        self.current.phase_config = next(
            s for s in config.phase_configs if s.first_step == first
        )


def state_dict(run: Run, state: RunState) -> dict[str, Any]:
    """Return what a checkpoint holds beside weights, optimizer and reference."""
    return {
        "alerts": run.journal.rules.state_dict(),
        "engine": lasting_engine(run.engine)
        if state.config.rollout.engine == "auto"
        else None,
        "memory": state.budget.state_dict(),
        "setbacks": asdict(state.setbacks),
        "phase": state.phase.state_dict(),
        **(
            {}
            if run.prefetch.batch is None
            else {"task": task_digest(state.phase.config, run.prompts)}
        ),
    }


def load_state_dict(run: Run, state: RunState, saved: Mapping[str, Any]) -> None:
    """Go on as a checkpoint left the run; `enter_phase` restores the phase."""
    if "alerts" in saved:  # else of an older release, which kept other readings
        run.journal.rules.load_state_dict(saved["alerts"])
    state.budget.load_state_dict(saved["memory"])
    state.setbacks = Setbacks(**saved["setbacks"])


def task_digest(config: RunConfig, prompts: Prompts) -> str:
    """Return SHA-256 of what a batch sampled ahead depends on, beside the weights.

    How many scores may fail and who scores them changes none of them, nor does what
    "auto" stands for, which is written as it was before there was such a choice.
    """
    reward = config.reward.model_dump(
        mode="json", exclude={"max_error_share", "num_workers"}
    )
    rollout = config.rollout.model_dump(mode="json")
    before = {"engine": "transformers", "cache_gib": 4.0, "sleep": False}
    rollout |= {name: old for name, old in before.items() if rollout[name] == "auto"}
    tree = [config.seed, rollout, reward, prompts.digest]
    if config.curriculum.kind != "off":  # else as before there were curricula
        tree.append(config.curriculum.model_dump(mode="json"))
    if config.environment.is_there:  # else as before there were environments
        tree.append(config.environment.model_dump(mode="json"))
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def enter_phase(
    run: Run, state: RunState, phase: PhaseConfig, *, saved: Path | None
) -> None:
    """Begin a phase, or go on in it from a checkpoint; the last one is let go."""
    state.current = None
    gc.collect()  # its models and moments, before there are others
    torch.cuda.empty_cache()
    is_long = phase.config.optim.num_steps > COMPILED_STEPS
    # layers that are sharded gather their weights, which compiled code does not expect
    if run.policy.device.type == "cuda" and run.policy.whole is run.policy:
        run.policy.compile_layers(on=is_long)
    state.current = make_phase(
        phase,
        policy=run.policy,
        engine=run.engine,
        prompts=run.prompts.train,
        saved=saved,
        on_slowed=run.slowed.append,
        beliefs=state.beliefs,
    )
    state.budget.begin_phase(
        phase.config.optim.micro_batch_tokens, first_step=phase.first_step
    )


def note_pass_rates(state: RunState, groups: Sequence[Group], *, step: int) -> None:
    """Take in the groups of a step, those that were not trained on too."""
    config = state.phase.config
    if state.beliefs is None or config.rollout.source == "dataset":
        return
    recipe = config.reward.recipe
    outcomes = [right_of(group.scores, recipe, step=step) for group in groups]
    state.beliefs.add_visits(
        np.array([group.prompt.index for group in groups]),
        right=np.array([right for right, _ in outcomes]),
        scored=np.array([scored for _, scored in outcomes]),
        step=step,
        decay=config.curriculum.decay,
    )


def sync_weights(run: Run, phase: PhaseState) -> None:
    """Make whatever samples from the policy sample from its present weights."""
    phase.source.sync_weights()
    if phase.config.rollout.source != "policy":
        run.engine.sync_weights()  # which evaluation samples with


def choose_sizes(
    run: Run, state: RunState, work: Callable[[Sequence[MicroBatch]], object]
) -> None:
    """Choose what goes through a GPU at once, by what a phase's passes take."""
    phase, policy, config = state.phase, run.policy, state.phase.config
    memory = memory_of(policy.device)
    if memory is None:
        return

    def measured(micro_batches: Sequence[MicroBatch]) -> None:
        work(micro_batches)
        phase.optimizer.clear()

    sampling_bytes = 0
    if config.rollout.one_step_off and uses_own_decoder(run.engine):
        rows = -(-config.completions_per_step // run.world.size)
        rows = min(rows, config.rollout.max_batch_rows)
        token = bytes_per_token(policy.model.config, policy.model.dtype)
        sampling_bytes = round(1.1 * rows * config.longest_sequence * token)
    sizes = state.budget.choose(
        policy,
        config,
        memory,
        measured,
        later_bytes=phase.optimizer.missing_bytes,
        beside_bytes=sampling_bytes,
    )
    if sizes is not None:
        kind = "with" if sizes.checkpointing else "without"
        print_line(
            f"the free GPU memory fits micro-batches of {sizes.tokens:,} tokens "
            f"{kind} gradient checkpointing"
        )


def sample_kl(
    run: Run, state: RunState, minibatches: Sequence[Minibatch], *, step: int
) -> None:
    """Ask the start about a sample of a batch, where the loss has no reference."""
    phase = state.phase
    if phase.kl_sample is None:
        return
    reason = phase.kl_sample.add_logprobs(
        minibatches,
        step=step,
        temperature=phase.config.logprob_temperature,
        max_tokens=state.budget.tokens,
    )
    if reasons := [text for text in run.world.gather(reason) if text]:
        torch.cuda.empty_cache()
        phase.kl_sample = None
        run.journal.warn(
            "kl_not_measured",
            f"Out of memory while measuring KL ({reasons[0]}), so KL is no longer "
            "measured. Training continues.",
        )


def warn_of_memory(journal: Journal, tokens: int, reason: str) -> None:
    journal.warn(
        "out_of_memory",
        f"Out of memory ({reason}), so this step was repeated with micro-batches of "
        f"at most {tokens} tokens, and later steps use the same; results do not "
        f"change. Set optim.micro_batch_tokens to {tokens} to avoid this in later "
        "runs.",
        value=float(tokens),
    )


def warn_of_sampling(run: Run) -> None:
    """Warn where the model became slower, in any process, once all have sampled."""
    policy, journal = run.policy, run.journal
    if policy.slowed:
        journal.warn(
            "engine_fallback",
            f"{policy.slowed}. Updates continue with a slower method and the same "
            "results.",
        )
        policy.slowed = ""
    # another thread may sample ahead, and add to them meanwhile
    own = [run.slowed.pop(0) for _ in range(len(run.slowed))]
    slowdowns = run.world.gather(own)
    values = [
        (slowdown, rank) for rank, own in enumerate(slowdowns) for slowdown in own
    ]

    def of(rank: int) -> str:
        return f" in process {rank}" if run.world.size > 1 else ""

    halved = [value for value in values if value[0].code == "out_of_memory"]
    if halved:
        slowed, rank = min(halved, key=lambda value: value[0].rows)
        journal.warn(
            slowed.code,
            f"Out of memory while sampling{of(rank)} ({slowed.reason}), so at most "
            f"{slowed.rows} completions are sampled at once from now on. Set "
            f"rollout.max_batch_rows to {slowed.rows} to avoid this in later runs.",
            value=float(slowed.rows),
        )
    for slowed, rank in values:
        if slowed.code == "engine_fallback":
            journal.warn(
                slowed.code,
                f"{slowed.failed} failed{of(rank)} ({slowed.reason}). Sampling "
                f"continues with {slowed.way}.",
            )


def warn_of_judges(run: Run, config: RunConfig) -> None:
    """Warn of models that could not judge, in any process, each reason once."""
    recipes = [
        recipe
        for phase in config.phase_configs
        for recipe in phase.config.reward.recipes
    ]
    if not any(needs_models(recipe) for recipe in recipes):
        return
    warnings = run.world.gather(current_session().take_warnings())
    for text in dict.fromkeys(chain.from_iterable(warnings)):
        run.journal.warn("judge", text)


CHANGES = "changes.json"  # in the folder of the event log


def apply_changes(run: Run, state: RunState) -> None:
    """Apply the changes of settings that are due after the last step, each once.

    A change that an earlier attempt applied takes effect at the same step again, so a
    resumed run repeats it exactly. It is logged again if no checkpoint holds it.
    """
    path, step = run.paths.out / CHANGES, state.done_steps
    try:
        changes = run.world.from_main(lambda: read_changes(path))
    except ValueError as error:
        if not state.has_unread_changes:
            state.has_unread_changes = True
            run.journal.warn("changes", f"{CHANGES} cannot be read: {error}")
        return
    for change in changes:
        due = step if change.after_step is None else change.after_step
        if change.number in state.applied_changes or due > step:
            continue
        state.applied_changes.add(change.number)
        state.take_settings(change_settings(state.config, change.settings))
        if due == step:
            run.log.add(
                SettingsChanged,
                step=step,
                number=change.number,
                settings=change.settings,
            )
            run.log.flush()


def read_changes(path: Path) -> tuple[Change, ...]:
    """Read changes in their order; none where there is no such file."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return ()
    changes = ChangeList.model_validate_json(text).changes
    return tuple(sorted(changes, key=lambda change: change.number))
