"""A run from its configuration to its end."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stdout
from functools import partial
from pathlib import Path

from trainer.config import RunConfig
from trainer.console import print_error, print_line, print_traceback
from trainer.disk import DiskFull, is_disk_full
from trainer.errors import Failure, ScoresMissing
from trainer.events import RunFailed, RunFinished, RunPaused, RunStopped
from trainer.host import begin_heartbeat
from trainer.output.checkpoint import newest_checkpoint, verify_checkpoint
from trainer.output.log import (
    EventLog,
    UnwrittenLog,
    archive_log,
    newest_attempt,
    output_disk_full,
)
from trainer.parallel.launch import (
    EXIT_BAD_CONFIG,
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_PAUSED,
    EXIT_STOPPED,
)
from trainer.parallel.world import ALONE, World, join_world
from trainer.rewards.sandbox.slot import find_sandbox
from trainer.rewards.session import open_session
from trainer.run.loop import train
from trainer.run.setup import announce, prepare
from trainer.run.state import RunPaths, RunState
from trainer.scoring import Scorer
from trainer.stopping import Stopped, StopSwitch, watch_parent


def main(args: argparse.Namespace, config: RunConfig, stop: StopSwitch) -> int:
    """Run to the end, a stop, a pause or a failure; the exit code says which.

    Raises:
        Stopped: before there is a log to say so in.
    """
    world = ALONE
    try:
        with stop.at_once():
            watch_parent()
            _require_sandbox(config)
            world = join_world(config)
            paths = world.from_main(lambda: _place(args))
    except ValueError as error:
        # all found the same; before they have met, all of this machine
        if os.environ.get("LOCAL_RANK" if world is ALONE else "RANK", "0") == "0":
            print_error(str(error))
        return EXIT_BAD_CONFIG
    with (
        _output(paths, world) as log,
        world.watched(partial(_end, log)),
        open_session(
            paths.out,
            attempts=paths.attempts,
            rank=world.rank,
            num_processes=world.size,
        ),
        closing(Scorer(config.reward.num_workers)) as scorer,
    ):
        try:
            code = _run(config, paths, log, stop, world, scorer)
        except Stopped:
            stop.run_on_exit()
            return EXIT_STOPPED  # and so do the others, who are asked nothing more
        if code != EXIT_FAILED and not world.from_main(log.is_written):
            code = EXIT_PAUSED  # resumed, it says its last word again
    if code != EXIT_FAILED:
        world.close()
    return code


@contextmanager
def _output(paths: RunPaths, world: World) -> Iterator[EventLog]:
    """Open the log and the console's messages, which one process writes."""
    if world.is_main:
        path = paths.out / "events.jsonl"
        with EventLog(path, attempt=paths.attempt, defers_errors=world.size > 1) as log:
            yield log
    else:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            yield UnwrittenLog()


def _require_sandbox(config: RunConfig) -> None:
    """ValueError now, rather than a run in which a rule gives no score."""
    if config.runs_code:
        sandbox = find_sandbox()
        if sandbox.level is None:
            raise ValueError(sandbox.sentence)
        print_error(sandbox.sentence)


def _place(args: argparse.Namespace) -> RunPaths:
    """Make the folders ready; ValueError when this would overwrite a run's log."""
    out: Path = args.out
    checkpoints: Path = args.checkpoints or out / "checkpoints"
    resumes = args.resume or args.resume_from is not None
    if (out / "events.jsonl").exists() and not resumes:
        raise ValueError(
            f"{out} already contains the log of a run. Set another --out, or use "
            "--resume."
        )
    resume_from: Path | None = args.resume_from
    passed_over: list[str] = list(args.passed_over)
    if resume_from is not None:
        verify_checkpoint(resume_from)
    elif args.resume:
        resume_from = newest_checkpoint(checkpoints, on_refused=passed_over.append)
    try:
        out.mkdir(parents=True, exist_ok=True)
        checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{out} cannot be written: {error.strerror}.") from None
    attempt = args.attempt or newest_attempt(out) + 1
    archive_log(out)
    return RunPaths(
        config=args.config,
        out=out,
        checkpoints=checkpoints,
        resume_from=resume_from,
        passed_over=passed_over,
        attempt=attempt,
        attempts=args.attempts,
    )


def _run(
    config: RunConfig,
    paths: RunPaths,
    log: EventLog,
    stop: StopSwitch,
    world: World,
    scorer: Scorer,
) -> int:
    stop.on_exit = partial(_log_stop, log, paths)
    state: RunState | None = None
    try:
        with stop.at_once():
            run, state = prepare(config, paths, log, world=world, scorer=scorer)
            world.gather(None)  # all load, or none does
        stop.on_exit = partial(_log_stop, log, state)
        with closing(run):
            announce(run, state)
            if world.is_main:
                begin_heartbeat(paths.out)
            try:
                train(
                    run,
                    state,
                    resume_from=paths.resume_from,
                    should_stop=partial(_should_stop, world, log, stop),
                    loading=stop.at_once,
                )
            except ScoresMissing as missing:
                # all processes have the same groups, so all are here
                return _pause(log, state, missing, is_main=world.is_main)
            except DiskFull as lack:
                # found by the first process, which told all
                return _pause_for_disk_space(log, paths, lack, world)
    except Exception as error:  # noqa: BLE001 - whatever it is, the log must say it
        failure = world.explain(error)
        if state is not None or not isinstance(error, ValueError):
            print_traceback(
                error
            )  # else it is the configuration's, and a sentence is all
        if is_disk_full(error) and world.size == 1:
            return _pause_for_disk_space(
                log, paths, output_disk_full(paths.out, error), world
            )
        _tell(log, failure)
        return EXIT_FAILED
    step = state.done_steps
    if step < state.config.optim.num_steps:  # which may have changed
        stop.run_on_exit()
        return EXIT_STOPPED
    log.add(RunFinished, step=step)
    print_line("finished")
    return EXIT_FINISHED


def _should_stop(world: World, log: EventLog, stop: StopSwitch) -> bool:
    """DiskFull, in all processes, where the first one cannot write the log any more."""
    world.from_main(log.require_disk_space)
    return world.agree(wants=stop.is_set)


def _log_stop(log: EventLog, reached: RunPaths | RunState) -> None:
    step = reached.done_steps
    log.add(RunStopped, step=step, checkpoint=_checkpoint_name(reached))
    log.is_written()
    print_line(f"stopped after step {step}")


def _pause(
    log: EventLog, state: RunState, missing: ScoresMissing, *, is_main: bool
) -> int:
    log.add(
        RunPaused,
        step=state.done_steps,
        reason=str(missing),
        share=missing.share,
        limit=missing.limit,
        faults=missing.faults,
        checkpoint=_checkpoint_name(state),
    )
    print_line(f"paused after step {state.done_steps}")
    if not is_main:
        return EXIT_PAUSED
    message = "".join(
        f'\n{fault.count:,} times: rule "{fault.rule}": {fault.error}'
        for fault in missing.faults
    )
    print_error(
        f"{missing}{message}\nFix the failures and run the same command with "
        "--resume to sample and score the step again, or raise reward.max_error_share."
    )
    return EXIT_PAUSED


def _pause_for_disk_space(
    log: EventLog, paths: RunPaths, lack: DiskFull, world: World
) -> int:
    if not world.is_main:
        return EXIT_PAUSED
    newest = newest_checkpoint(paths.checkpoints)
    name = None if newest is None else newest.name
    where = (
        f"The last checkpoint, {name}, is complete"
        if name
        else ("No checkpoint was saved")
    )
    log.add(
        RunPaused,
        step=log.step,
        reason=f"{lack} {where}. The run pauses.",
        checkpoint=name,
        needs_bytes=lack.needs_bytes,
    )
    print_error(
        f"{lack} {where}. Free some space, then run the same command with --resume."
    )
    return EXIT_PAUSED  # which must do where the log takes nothing more


def _checkpoint_name(reached: RunPaths | RunState) -> str | None:
    newest = reached.newest_checkpoint
    return None if newest is None else newest.name


def _tell(log: EventLog, failure: Failure) -> None:
    log.add(RunFailed, step=log.step, error=failure.sentence, details=failure.details)
    print_error(failure.sentence)


def _end(log: EventLog, failure: Failure) -> None:
    """End a process that is stuck while another has failed."""
    try:
        _tell(log, failure)
        log.flush()
        sys.stderr.flush()
    finally:
        os._exit(EXIT_FAILED)
