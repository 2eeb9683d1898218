"""The training loop: phase after phase, step after step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from trainer.config.run import Stage
from trainer.console import note_step, say
from trainer.errors import ScoresMissing, error_share
from trainer.evaluation import evaluate
from trainer.events import CheckpointSaved, Evaluated, PhaseStarted
from trainer.grpo import train_step
from trainer.output.checkpoint import (
    prune_checkpoints,
    save_checkpoint,
    saved_ahead,
    saved_controllers,
    saved_step,
)
from trainer.output.metrics import Stopwatch
from trainer.output.saved_batch import SampledBatch, load_batch
from trainer.rollback import go_back
from trainer.state import Training, apply_changes


def train(
    training: Training,
    *,
    resume_from: Path | None,
    should_stop: Callable[[], bool],
    loading: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Run the steps after `training.done_steps`, to the end or until asked to stop.

    What a step means is in the log before its checkpoint exists: its groups and
    metrics, then its evaluation. A resumed run owes nothing to the past.

    All processes ask `should_stop` at the same places and must get the same answer.
    What a phase begins with is loaded within `loading`.

    Raises:
        ScoresMissing: a step cannot be trained on; what was before it is saved.
        DiskFull: the disk has none for a checkpoint; the last one is as it was.
    """
    state = None if resume_from is None else saved_controllers(resume_from)
    if state is not None:
        training.load_state(state)
    apply_changes(training)
    while (stage := _stage_at(training)) is not None and not should_stop():
        is_begun = training.done_steps >= stage.first_step
        with loading():
            training.enter(stage, saved=resume_from if is_begun else None)
            training.world.gather(None)  # all load, or none does
        if is_begun and state is not None and resume_from is not None:
            training.stage.load_state(state["phase"])
            training.ahead.batch = _batch_ahead(training, resume_from, state)
        if not is_begun:
            begin_phase(training, stage)
        # What it hears may move the phase's end.
        while training.done_steps < training.stage.stage.last_step:
            if run_step(training, should_stop=should_stop):
                return
            apply_changes(training)


def _stage_at(training: Training) -> Stage | None:
    """The phase that the next step belongs to; None when all are done."""
    stages = training.config.stages
    return next((s for s in stages if s.last_step > training.done_steps), None)


def _batch_ahead(
    training: Training, checkpoint: Path, state: Mapping[str, Any]
) -> SampledBatch | None:
    """What a checkpoint holds for the next step, where the phase samples ahead.

    A batch that a run would pause at is sampled and scored anew, and so is a fork's
    where its prompts, its sampling or its rewards are others.
    """
    folder, config = saved_ahead(checkpoint), training.stage.config
    if folder is None or not config.rollout.one_step_off:
        return None
    own = training.task_digest
    if state.get("task", own) != own:
        return None
    batch = load_batch(folder, training.train_prompts)
    share = error_share(batch.groups)
    return batch if share <= config.reward.max_error_share else None


def begin_phase(training: Training, stage: Stage) -> None:
    """Tell of a phase that begins, and measure where the run does."""
    training.journal.alarms.begin_phase()
    if stage.name:
        training.log.add(
            PhaseStarted,
            step=stage.first_step,
            name=stage.name,
            first_step=stage.first_step,
            last_step=stage.last_step,
        )
        training.log.flush()
        say(f"phase {stage.name}: steps {stage.first_step} to {stage.last_step}")
    if stage.first_step == 1:
        run_evaluation(training, step=0)


def run_step(training: Training, *, should_stop: Callable[[], bool]) -> bool:
    """One step with all that is due after it; whether the run is to stop behind it."""
    state, step = training.stage, training.done_steps + 1
    config = state.config
    watch, training.journal.step = Stopwatch(), step
    note_step(step)
    try:
        outcome = train_step(training, step=step, watch=watch)
    except ScoresMissing:
        keep(training)
        raise
    training.tell_of_sampling()
    training.tell_of_judges()
    has_diverged = training.setbacks.count(
        outcome.updates, limit=config.optim.max_nonfinite
    )
    if not has_diverged:
        state.after_step(step, training.policy, outcome.updates)
    with watch.phase("sync"):
        training.sync_weights()
    metrics = training.journal.record_step(outcome, config, watch)
    training.done_steps = step
    say(
        f"step {step}/{training.config.optim.num_steps}  "
        f"reward {_shown(metrics['reward/mean'])}  "
        f"length {_shown(metrics['completion/mean_length'])}  "
        f"{_shown(metrics['time/step'])} s"
    )
    is_last = step == state.stage.last_step
    del state  # else a rollback would hold two phases' models at once
    if has_diverged:
        go_back(training, outcome)
    if is_last or _is_due(step, config.evaluation.every_steps):
        run_evaluation(training, step=step)
    # asked once, so that whoever asks for a stop after this gets one more step
    is_stopping = should_stop()
    if is_last or is_stopping or _is_due(step, config.checkpoint.every_steps):
        write_checkpoint(training, step=step)
    return is_stopping


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def run_evaluation(training: Training, *, step: int) -> None:
    """Evaluate on each held-out set, where it is asked for."""
    config = training.stage.config
    if config.evaluation.every_steps == 0:
        return
    for name, prompts in training.eval_sets.items():
        metrics = evaluate(
            training.engine,
            prompts,
            config,
            name=name,
            world=training.world,
            scorer=training.scorer,
        )
        training.log.add(
            Evaluated,
            step=step,
            name=name,
            num_prompts=len(prompts),
            samples_per_prompt=config.evaluation.samples_per_prompt,
            metrics=metrics,
        )
        reward = _shown(metrics[f"eval/{name}/mean"])
        say(f"{name} after step {step}: reward {reward}")
    training.tell_of_sampling()
    training.tell_of_judges()
    training.log.flush()


def write_checkpoint(training: Training, *, step: int) -> None:
    """Save the run as it is after a step, and drop what is older than asked for."""
    stage = training.stage
    saved = save_checkpoint(
        training.checkpoints,
        step=step,
        epoch=training.epoch,
        policy=training.policy,
        optimizer=stage.optimizer,
        reference=stage.reference,
        start=stage.start,
        ahead=training.ahead.batch,
        controllers=training.state(),
        before=training.newest_checkpoint,
        world=training.world,
    )
    training.log.add(
        CheckpointSaved,
        step=step,
        name=saved.name,
        sha256=saved.sha256,
        num_bytes=saved.num_bytes,
    )
    training.log.flush()
    training.newest_checkpoint = training.checkpoints / saved.name
    if training.world.is_main:
        prune_checkpoints(
            training.checkpoints,
            keep_last=training.config.checkpoint.keep_last,
            step=step,
            epoch=training.epoch,
            lives=training.lives,
        )
    say(f"saved {saved.name}")


def keep(training: Training) -> None:
    """Save the run as it is between two steps, unless that is saved already.

    What was sampled ahead is not: where scores failed it is to be scored anew.
    """
    training.ahead.drop()
    newest, step = training.newest_checkpoint, training.done_steps
    if step > 0 and (newest is None or saved_step(newest) != step):
        write_checkpoint(training, step=step)


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
