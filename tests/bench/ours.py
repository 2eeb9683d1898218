"""Cohort's steps: those of a run, without evaluation and checkpoints."""

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.subprocesses import READY, Give, peak_bytes
from tests.bench.work import RATE, Lengths, Step, Work


def our_steps(give: Give, work: Work) -> None:
    """READY, then step after step, without end."""
    with tempfile.TemporaryDirectory() as name:
        _steps(give, work, Path(name))


def _steps(give: Give, work: Work, folder: Path) -> None:
    from trainer.config import RunConfig
    from trainer.output.log import EventLog
    from trainer.run.loop import run_step
    from trainer.run.setup import prepare
    from trainer.run.state import RunPaths, enter_phase

    if work.device == "cuda":
        _time_kernels_where_they_were_started()
    log = folder / "events.jsonl"
    config = RunConfig.model_validate(config_tree(work))
    run, state = prepare(
        config,
        RunPaths(
            config=folder / "run.json",
            out=folder,
            checkpoints=folder / "checkpoints",
            resume_from=None,
            attempt=1,
        ),
        EventLog(log, attempt=1),
    )
    (stage,) = config.phase_configs
    enter_phase(run, state, stage, saved=None)
    prompt_lengths = {p.index: len(p.token_ids) for p in run.prompts.train}
    with log.open() as events:
        events.read()  # what came before the first step
        give(READY)
        while True:
            begin = time.perf_counter()
            run_step(run, state, should_stop=lambda: False)
            _wait_for(work.device)
            seconds = time.perf_counter() - begin
            give(
                _reported(
                    # other signs that end a line may be in a completion
                    [json.loads(line) for line in events.read().split("\n") if line],
                    prompt_lengths,
                    seconds=seconds,
                    peak=peak_bytes(work.device),
                )
            )


def config_tree(work: Work) -> dict[str, Any]:
    return {
        "model": {
            "path": str(work.model),
            "device": work.device,
            "dtype": work.dtype,
            "lora_rank": work.lora_rank,
            "gradient_checkpointing": work.recomputes,
        },
        "data": {
            # a relative one would be looked for beside the run's own files
            "rows": str(work.rows.resolve()),
            "num_eval_rows": 0,
            "chat_template": "none",
            "max_prompt_tokens": 256,
        },
        "rollout": {
            "prompts_per_step": work.num_prompts,
            "group_size": work.group_size,
            "max_new_tokens": work.max_new_tokens,
        },
        "reward": {
            "recipe": {
                "rules": [
                    {
                        # every text has its own score, so every group a gradient
                        "name": "short",
                        "kind": "length",
                        "params": {
                            "maximum": 1,
                            "soft_edge": 32 * work.max_new_tokens,
                        },
                    }
                ]
            }
        },
        "loss": {"kl_coef": work.beta},
        "optim": {
            "num_steps": 1_000_000,  # the last one would write a checkpoint
            "learning_rate": RATE,
            "micro_batch_tokens": work.micro_batch_tokens,
        },
        "evaluation": {"every_steps": 0},
        "checkpoint": {"every_steps": 0},
        "logging": {"mismatch": work.mismatch},
    }


def _reported(
    events: list[dict[str, Any]],
    prompt_lengths: dict[int, int],
    *,
    seconds: float,
    peak: int,
) -> Step:
    """A step by what its events say."""
    groups = [event for event in events if event["type"] == "group_scored"]
    (done,) = (event for event in events if event["type"] == "step_finished")
    return Step(
        seconds=seconds,
        lengths=Lengths(
            prompts=tuple(prompt_lengths[group["prompt_index"]] for group in groups),
            groups=tuple(
                tuple(each["num_tokens"] for each in group["completions"])
                for group in groups
            ),
        ),
        phases={
            name.removeprefix("time/"): value
            for name, value in done["metrics"].items()
            if name.startswith("time/") and value is not None
        },
        peak_bytes=peak,
    )


def _wait_for(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def _time_kernels_where_they_were_started() -> None:
    """Else a phase's kernels are waited for, and counted, in a later one."""
    import torch

    from trainer.output.metrics import Stopwatch
    from trainer.run import loop

    class Waiting(Stopwatch):
        @contextmanager
        def phase(self, name: str) -> Iterator[None]:
            with super().phase(name):
                yield
                torch.cuda.synchronize()

    loop.Stopwatch = Waiting
