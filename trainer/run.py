"""`python -m trainer run`: one run, from its configuration to its end."""

from __future__ import annotations

import argparse
import platform
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch
import transformers

from trainer.checkpoint import (
    newest_checkpoint,
    restore_optimizer,
    restore_policy,
    saved_reference,
    saved_step,
    verify_checkpoint,
)
from trainer.config import RunConfig, read_config
from trainer.events import (
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    RunStopped,
)
from trainer.failures import explain
from trainer.log import EventLog, archive_log, newest_epoch
from trainer.loop import Training, say, train
from trainer.optimization import Optimizer
from trainer.parent import watch_parent
from trainer.prompts import DataOrder, PromptRenderer, read_rows, split_rows
from trainer.reference import make_reference
from trainer.rollout.transformers_engine import TransformersEngine
from trainer.seeding import seed_torch

EXIT_FINISHED, EXIT_FAILED, EXIT_BAD_CONFIG, EXIT_STOPPED = 0, 1, 2, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="run configuration, TOML or JSON")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for events.jsonl"
    )
    parser.add_argument(
        "--epoch", type=int, help="number of this life of the run (default: the next)"
    )
    parser.add_argument(
        "--checkpoints", type=Path, help="folder of checkpoints (default: in --out)"
    )
    resume = parser.add_mutually_exclusive_group()
    resume.add_argument(
        "--resume", action="store_true", help="go on from the newest checkpoint"
    )
    resume.add_argument(
        "--resume-from", type=Path, metavar="CHECKPOINT", help="go on from this one"
    )


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run reads and writes."""

    config: Path
    out: Path
    checkpoints: Path
    resume_from: Path | None
    epoch: int


class StopSwitch:
    """Set by SIGTERM or SIGINT; the loop looks at it between steps."""

    def __init__(self) -> None:
        self.is_set = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process


def main(args: argparse.Namespace) -> int:
    """Run to the end, to a stop or to a failure; the exit code says which."""
    stop = StopSwitch()
    try:
        watch_parent()
        config = read_config(args.config)
        place = _place(args)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_BAD_CONFIG
    with EventLog(place.out / "events.jsonl", epoch=place.epoch) as log:
        return _run(config, place, log, stop)


def _place(args: argparse.Namespace) -> Place:
    """Make the folders ready; ValueError when this would overwrite a run's log."""
    out: Path = args.out
    checkpoints: Path = args.checkpoints or out / "checkpoints"
    resumes = args.resume or args.resume_from is not None
    if (out / "events.jsonl").exists() and not resumes:
        raise ValueError(
            f"{out} already holds the log of a run. Give another --out, or --resume."
        )
    resume_from: Path | None = args.resume_from
    if resume_from is not None:
        verify_checkpoint(resume_from)
    elif args.resume:
        resume_from = newest_checkpoint(checkpoints)
    try:
        out.mkdir(parents=True, exist_ok=True)
        checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{out} cannot be written: {error.strerror}.") from None
    epoch = args.epoch or newest_epoch(out) + 1
    archive_log(out)
    return Place(
        config=args.config,
        out=out,
        checkpoints=checkpoints,
        resume_from=resume_from,
        epoch=epoch,
    )


def _run(config: RunConfig, place: Place, log: EventLog, stop: StopSwitch) -> int:
    step = 0
    try:
        step = 0 if place.resume_from is None else saved_step(place.resume_from)
        training = prepare(config, place, log, step=step)
        saved = train(training, done_steps=step, should_stop=lambda: stop.is_set)
    except Exception as error:  # noqa: BLE001 - whatever it is, the log must say it
        sentence = explain(error)
        log.add(
            RunFailed, step=log.step, error=sentence, details=traceback.format_exc()
        )
        traceback.print_exc()
        sys.stderr.write(f"{sentence}\n")
        return EXIT_FAILED
    if log.step < config.optim.num_steps:
        if saved is None and place.resume_from is not None:
            saved = place.resume_from.name
        log.add(RunStopped, step=log.step, checkpoint=saved)
        say(f"stopped after step {log.step}")
        return EXIT_STOPPED
    log.add(RunFinished, step=log.step)
    say("finished")
    return EXIT_FINISHED


def prepare(config: RunConfig, place: Place, log: EventLog, *, step: int) -> Training:
    """Load model, data and optimizer, as new or as a checkpoint left them."""
    if config.distributed.num_threads is not None:
        torch.set_num_threads(config.distributed.num_threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    seed_torch(config.seed)
    rows = read_rows(place.config.parent / config.data.rows)
    train_rows, eval_rows = split_rows(
        rows, num_eval_rows=config.data.num_eval_rows, seed=config.seed
    )
    order = DataOrder(
        num_rows=len(train_rows),
        prompts_per_step=config.rollout.prompts_per_step,
        seed=config.seed,
    )
    resume_from = place.resume_from
    policy = restore_policy(config.model, resume_from)
    renderer = PromptRenderer(policy.tokenizer, config.data)
    optimizer = Optimizer(policy, config.optim)
    if resume_from is not None:
        restore_optimizer(resume_from, optimizer)
    training = Training(
        config=config,
        policy=policy,
        reference=make_reference(
            config,
            policy,
            saved=None if resume_from is None else saved_reference(resume_from),
        ),
        engine=TransformersEngine(policy, max_batch_rows=config.rollout.max_batch_rows),
        optimizer=optimizer,
        train_prompts=[renderer.render(row) for row in train_rows],
        eval_prompts=[renderer.render(row) for row in eval_rows],
        order=order,
        log=log,
        checkpoints=place.checkpoints,
        epoch=place.epoch,
    )
    _announce(training, place, step=step)
    return training


def _announce(training: Training, place: Place, *, step: int) -> None:
    facts = {
        "num_steps": training.config.optim.num_steps,
        "num_parameters": training.policy.num_parameters,
        "num_train_rows": len(training.train_prompts),
        "num_eval_rows": len(training.eval_prompts),
        "device": _device_name(training.policy.device),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
    log = training.log
    if place.resume_from is None:
        log.add(RunStarted, step=0, **facts)
    else:
        log.add(RunResumed, step=step, checkpoint=place.resume_from.name, **facts)
    say(
        f"{facts['num_parameters']:,} parameters on {facts['device']}, "
        f"{facts['num_train_rows']} prompts, from step {step}"
    )
    log.flush()


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({torch.get_num_threads()} threads)"
