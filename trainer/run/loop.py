"""The training loop over phases and steps, and rollbacks of non-finite updates."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from trainer.config.run import PhaseConfig
from trainer.console import note_step, print_line
from trainer.disk import prune_checkpoints
from trainer.errors import Diverged, ScoresMissing, error_share
from trainer.evaluation import evaluate
from trainer.events import CheckpointSaved, Evaluated, PhaseStarted
from trainer.gathering import SampledBatch, load_batch
from trainer.grpo import train_step
from trainer.model.microbatches import Minibatch
from trainer.output.checkpoint import (
    restore_policy,
    save_checkpoint,
    saved_ahead,
    saved_controllers,
    saved_step,
    verify_checkpoint,
)
from trainer.output.metrics import Stopwatch, record_ranks
from trainer.parallel.fsdp import copy_weights
from trainer.rollout.select import lasting_engine
from trainer.rollout.speeds import note_speed, work_of
from trainer.run.outcome import StepOutcome, UpdateResult
from trainer.run.phases import PhaseState
from trainer.run.state import (
    Run,
    RunState,
    apply_changes,
    enter_phase,
    load_state_dict,
    note_pass_rates,
    state_dict,
    sync_weights,
    task_digest,
    warn_of_judges,
    warn_of_sampling,
)
from trainer.types import Group

FAILED_BATCH = "failed-batch"


def roll_back(run: Run, state: RunState, outcome: StepOutcome) -> None:
    """Take weights and phase from the last checkpoint; steps and data go on.

    The learning rate is half of what it would have been from there on.

    So the log holds each step once, and the prompts that may be at fault come again
    only when their turn does. What the weights given up have sampled ahead goes with
    them. Without a checkpoint the run's start is where it goes.

    Raises:
        Diverged: it went back before.
    """
    limit = state.phase.config.optim.max_nonfinite
    if state.setbacks.num_rollbacks > 0:
        folder = run.paths.out / FAILED_BATCH
        save_failed_batch(
            folder,
            step=run.journal.step,
            groups=outcome.gathered.groups,
            minibatches=outcome.minibatches,
            updates=outcome.updates,
            rank=run.world.rank,
        )
        raise Diverged(
            f"{limit} updates in a row had a non-finite loss or gradient, for the "
            f"second time in this run. The batch is in {folder}: check it for extreme "
            "rewards, lower the learning rate, or set optim.max_grad_norm."
        )
    state.setbacks.roll_back()
    run.prefetch.drop()
    phase, checkpoint = state.phase.phase_config, state.newest_checkpoint
    name = "the starting model" if checkpoint is None else checkpoint.name
    if checkpoint is not None:
        verify_checkpoint(checkpoint)
    is_within = checkpoint is not None and saved_step(checkpoint) >= phase.first_step
    restored = restore_policy(state.config.model, checkpoint)
    copy_weights(restored, run.policy)  # in place: the rollout engine holds it
    del restored
    enter_phase(run, state, phase, saved=checkpoint if is_within else None)
    if checkpoint is not None and is_within:
        state.phase.load_state_dict(saved_controllers(checkpoint)["phase"])
    sync_weights(run, state.phase)
    run.journal.warn(
        "rolled_back",
        f"{limit} updates in a row had a non-finite loss or gradient, so the run "
        f"restored the weights of {name} and continues at "
        f"{state.setbacks.rate_factor:g} of the learning rate. If it happens again, "
        "the run fails; lower the learning rate, or set optim.max_grad_norm.",
        value=float(limit),
    )
    run.log.flush()


def save_failed_batch(
    folder: Path,
    *,
    step: int,
    groups: Sequence[Group],
    minibatches: Sequence[Minibatch],
    updates: Sequence[UpdateResult],
    rank: int = 0,
) -> None:
    """Write the tensors, texts and rewards of a step whose updates were not finite.

    tensors.safetensors has each micro-batch's as minibatch.micro_batch.name, and of a
    further process tensors-RANK.safetensors has its own; batch.json has the texts,
    rewards and what the updates came to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{index}.{part}.{name}": value.detach().cpu().contiguous().clone()
        for index, minibatch in enumerate(minibatches)
        for part, micro in enumerate(minibatch.micro_batches)
        for name, value in vars(micro).items()
        if isinstance(value, torch.Tensor)
    }
    suffix = f"-{rank}" if rank else ""
    save_file(tensors, folder / f"tensors{suffix}.safetensors")
    if rank:
        return
    story = {
        "step": step,
        "updates": [
            {
                "loss": str(u.loss),
                "grad_norm": str(u.grad_norm),
                "skipped": u.is_skipped,
            }
            for u in updates
        ],
        "members": [
            [micro.members for micro in minibatch.micro_batches]
            for minibatch in minibatches
        ],
        "groups": [
            {
                "prompt_index": group.prompt.index,
                "prompt": group.prompt.text,
                "completions": [
                    {
                        "text": completion.text,
                        "token_ids": completion.token_ids,
                        "end_reason": completion.end_reason,
                        "reward": score.total,
                    }
                    for completion, score in zip(
                        group.completions, group.scores, strict=True
                    )
                ],
            }
            for group in groups
        ],
    }
    (folder / "batch.json").write_text(
        json.dumps(story, indent=2, ensure_ascii=False), encoding="utf-8"
    )


def train(
    run: Run,
    state: RunState,
    *,
    resume_from: Path | None,
    should_stop: Callable[[], bool],
    loading: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Run the steps after `state.done_steps`, to the end or until asked to stop.

    A step's groups, metrics and evaluation are in the log before its checkpoint exists,
    so a resumed run has nothing to make up for.

    All processes call `should_stop` at the same points and must get the same answer.
    The model of a phase is loaded within `loading`.

    Raises:
        ScoresMissing: a step cannot be trained on; what was before it is saved.
        DiskFull: no space for a checkpoint; the last one is unchanged.
    """
    saved = None if resume_from is None else saved_controllers(resume_from)
    if saved is not None:
        load_state_dict(run, state, saved)
    apply_changes(run, state)
    while (phase := _phase_at(state)) is not None and not should_stop():
        is_begun = state.done_steps >= phase.first_step
        with loading():
            enter_phase(run, state, phase, saved=resume_from if is_begun else None)
            run.world.gather(None)  # all load, or none does
        if is_begun and saved is not None and resume_from is not None:
            state.phase.load_state_dict(saved["phase"])
            run.prefetch.batch = _batch_ahead(run, state.phase, resume_from, saved)
        if not is_begun:
            begin_phase(run, state, phase)
        # What it hears may move the phase's end.
        while state.done_steps < state.phase.phase_config.last_step:
            if run_step(run, state, should_stop=should_stop):
                return
            apply_changes(run, state)
    if phase is None:
        record_speed(run, state)


def record_speed(run: Run, state: RunState) -> None:
    """Add the speed of a run's engine to this machine's, where it is the engine's own.

    With environments, or while the GPU trains too, it is not.
    """
    config, engine = state.config, lasting_engine(run.engine)
    sampled = state.sampled[1:]  # the first step also sets up what samples
    is_mixed = config.phases or config.samples_ahead or config.environment.is_there
    samples = config.rollout.source == "policy" and run.policy.device.type == "cuda"
    is_alone = run.world.size == 1
    if not (samples and sampled and is_alone) or is_mixed or engine is None:
        return
    note_speed(
        work_of(config, run.policy),
        engine,
        num_tokens=sum(tokens for tokens, _ in sampled),
        seconds=sum(seconds for _, seconds in sampled),
        num_steps=len(sampled),
    )


def _phase_at(state: RunState) -> PhaseConfig | None:
    """Return the phase that the next step belongs to; None when all are done."""
    phases = state.config.phase_configs
    return next((s for s in phases if s.last_step > state.done_steps), None)


def _batch_ahead(
    run: Run, phase: PhaseState, checkpoint: Path, saved: Mapping[str, Any]
) -> SampledBatch | None:
    """Return the checkpoint's batch for the next step, if the phase samples ahead.

    A batch at which the run would pause is sampled and scored again, and so is that of
    a fork with other prompts, sampling or rewards.
    """
    folder, config = saved_ahead(checkpoint), phase.config
    if folder is None or not config.rollout.one_step_off:
        return None
    own = task_digest(config, run.prompts)
    if saved.get("task", own) != own:
        return None
    batch = load_batch(folder, run.prompts.train)
    share = error_share(batch.gathered.sampled)
    return batch if share <= config.reward.max_error_share else None


def begin_phase(run: Run, state: RunState, phase: PhaseConfig) -> None:
    """Tell of a phase that begins, and measure where the run does."""
    run.journal.rules.begin_phase()
    if phase.name:
        run.log.add(
            PhaseStarted,
            step=phase.first_step,
            name=phase.name,
            first_step=phase.first_step,
            last_step=phase.last_step,
        )
        run.log.flush()
        print_line(f"phase {phase.name}: steps {phase.first_step} to {phase.last_step}")
    if phase.first_step == 1:
        run_evaluation(run, state, step=0)


def run_step(run: Run, state: RunState, *, should_stop: Callable[[], bool]) -> bool:
    """Return one step with all that is due after it; whether the run is to stop behind
    it.
    """
    phase, step = state.phase, state.done_steps + 1
    config = phase.config
    watch, run.journal.step = Stopwatch(), step
    note_step(step)
    try:
        outcome = train_step(run, state, step=step, watch=watch)
    except ScoresMissing:
        keep(run, state)
        raise
    # behind what was sampled ahead, so that a batch is drawn by what was known before
    note_pass_rates(state, outcome.gathered.sampled, step=step)
    warn_of_sampling(run)
    warn_of_judges(run, state.config)
    has_diverged = state.setbacks.count(
        outcome.updates, limit=config.optim.max_nonfinite
    )
    if not has_diverged:
        phase.after_step(step, run.policy, outcome.updates)
    with watch.phase("sync"):
        sync_weights(run, phase)
    record_ranks(run.log, run.world, run.policy.device, watch, step=step)
    metrics = run.journal.record_step(outcome, config, watch)
    num_tokens = outcome.gathered.num_sampled_tokens
    state.sampled.append((num_tokens, metrics["time/generate"] or 0.0))
    state.done_steps = step
    print_line(
        f"step {step}/{state.config.optim.num_steps}  "
        f"reward {_shown(metrics['reward/mean'])}  "
        f"length {_shown(metrics['completion/mean_length'])}  "
        f"{_shown(metrics['time/step'])} s"
    )
    is_last = step == phase.phase_config.last_step
    del phase  # else a rollback would hold two phases' models at once
    if has_diverged:
        roll_back(run, state, outcome)
    if is_last or _is_due(step, config.evaluation.every_steps):
        run_evaluation(run, state, step=step)
    # read once: a stop requested after this takes effect after one more step
    is_stopping = should_stop()
    if is_last or is_stopping or _is_due(step, config.checkpoint.every_steps):
        write_checkpoint(run, state, step=step)
    return is_stopping


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def run_evaluation(run: Run, state: RunState, *, step: int) -> None:
    """Evaluate on each held-out set, where it is asked for."""
    config = state.phase.config
    if config.evaluation.every_steps == 0:
        return
    for name, prompts in run.prompts.eval_sets(config).items():
        metrics = evaluate(
            run.engine,
            prompts,
            config,
            name=name,
            world=run.world,
            scorer=run.scorer,
        )
        run.log.add(
            Evaluated,
            step=step,
            name=name,
            num_prompts=len(prompts),
            samples_per_prompt=config.evaluation.samples_per_prompt,
            metrics=metrics,
        )
        run.journal.judge_evaluation(metrics)
        reward = _shown(metrics[f"eval/{name}/mean"])
        print_line(f"{name} after step {step}: reward {reward}")
    warn_of_sampling(run)
    warn_of_judges(run, state.config)
    run.log.flush()


def write_checkpoint(run: Run, state: RunState, *, step: int) -> None:
    """Save the run as it is after a step, and drop what is older than asked for."""
    phase, paths = state.phase, run.paths
    saved = save_checkpoint(
        paths.checkpoints,
        step=step,
        attempt=paths.attempt,
        policy=run.policy,
        optimizer=phase.optimizer,
        reference=phase.reference,
        start=phase.start,
        ahead=run.prefetch.batch,
        controllers=state_dict(run, state),
        beliefs=state.beliefs,
        prompts_digest=run.prompts.digest if state.beliefs else "",
        before=state.newest_checkpoint,
        world=run.world,
    )
    run.log.add(
        CheckpointSaved,
        step=step,
        name=saved.name,
        sha256=saved.sha256,
        num_bytes=saved.num_bytes,
    )
    run.log.flush()
    state.newest_checkpoint = paths.checkpoints / saved.name
    if run.world.is_main:
        prune_checkpoints(
            paths.checkpoints,
            keep_last=state.config.checkpoint.keep_last,
            step=step,
            attempt=paths.attempt,
            attempts=paths.attempts,
        )
    print_line(f"saved {saved.name}")


def keep(run: Run, state: RunState) -> None:
    """Save the run as it is between two steps, unless that is saved already.

    What was sampled ahead is not: where scores failed it is to be scored again.
    """
    run.prefetch.drop()
    newest, step = state.newest_checkpoint, state.done_steps
    if step > 0 and (newest is None or saved_step(newest) != step):
        write_checkpoint(run, state, step=step)


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
