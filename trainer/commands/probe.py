"""`python -m trainer probe`: samples prompts before a run, to see what it could learn.

With `--checkpoint` it samples a checkpoint of the run and its base model instead: with
the same prompts, seeds and settings, and without measurements.

It appends lines of JSON to a file, each with a `type`:

    {"type": "phase", "name": "loading" | "sampling" | "updating"}
    {"type": "progress", "done": 12, "total": 32}      prompts sampled
    {"type": "group", "row": 3, "completions": [{"text", "num_tokens", "end_reason",
        "reward", "rules", "errors"}, …]}               row: line of data.rows, from 0;
                                                       is_base, with --checkpoint;
                                                       of an episode also "turns"
    {"type": "measured", "metrics": {…}}                see `Probing.metrics`
    {"type": "failed", "error": "…"}
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch

from trainer.config import RunConfig, read_config, require_packages
from trainer.data import Prompt, Row, read_rows
from trainer.errors import explain
from trainer.evaluation import chance_of_signal, evaluation_metrics, mean_interval
from trainer.gathering import Gathered, SampledBatch, differs, penalise_overlong
from trainer.grpo import fit_to_memory, train_on
from trainer.model.policy import Policy, load_policy
from trainer.output.checkpoint import restore_policy, saved_step
from trainer.output.journal import turn_records
from trainer.output.log import UnwrittenLog
from trainer.output.metrics import Stopwatch
from trainer.parallel.launch import (
    EXIT_BAD_CONFIG,
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_STOPPED,
)
from trainer.rewards.scoring import Score, add_usage, correctness_of
from trainer.rewards.spec import answer_reader, check_rules, recipe_bounds
from trainer.rewards.terms import AT_THE_END
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.engine import SamplingParams
from trainer.rollout.episodes import (
    check_environment,
    make_renderer,
    make_sampler,
)
from trainer.rollout.select import own_decoder
from trainer.run.setup import device_name, prepare, set_up_torch
from trainer.run.state import Run, RunPaths, RunState, enter_phase
from trainer.scoring import Scorer
from trainer.seeding import derive
from trainer.stopping import Stopped, watch_parent
from trainer.types import Group, Rollout

Metrics = dict[str, float | str | None]
# An update shorter than this is done twice: the first one also warms everything up.
_QUICK_SECONDS = 5.0


def config_of_probe(config: RunConfig) -> RunConfig:
    """Return the run's first phase in one process, sampling from its policy, without
    the rest.

    Nothing is held out, evaluated or saved, so that only what a step needs is loaded.
    """
    tree = config.phase_configs[0].config.model_dump()
    tree["data"]["num_eval_rows"] = 0
    tree["evaluation"] |= {"every_steps": 0, "sets": {}}
    tree["distributed"] |= {"where": "machine", "num_nodes": 1, "num_processes": 1}
    tree["rollout"]["one_step_off"] = False
    if tree["rollout"]["source"] == "dataset":
        tree["rollout"]["source"] = "policy"
        tree["advantage"]["credit"] = "outcome"
    return RunConfig.model_validate(tree)


def load_probing(
    config: RunConfig,
    *,
    folder: Path,
    num_prompts: int | None,
    num_samples: int,
    scorer: Scorer,
) -> Probing:
    """Load model and rows as a run does.

    Raises:
        ValueError: as `trainer.run.setup.prepare`; or there is nothing to sample.
    """
    if num_samples < 1 or (num_prompts is not None and num_prompts < 1):
        raise ValueError(
            f"A test needs at least 1 completion of 1 prompt; got {num_samples} of "
            f"{num_prompts}. Raise --samples or --prompts."
        )
    # A step takes distinct prompts, of which a probe may have fewer than the run.
    one_prompt = config.rollout.model_copy(update={"prompts_per_step": 1})
    one_update = config.optim.model_copy(update={"minibatches": 1})
    loaded = config.model_copy(update={"rollout": one_prompt, "optim": one_update})
    paths = RunPaths(
        config=folder / "probe.json",
        out=folder,
        checkpoints=folder,
        resume_from=None,
        attempt=1,
    )
    run, state = prepare(loaded, paths, UnwrittenLog(), scorer=scorer)
    return Probing(
        config=config,
        run=run,
        state=state,
        prompts=run.prompts.train[:num_prompts],
        num_samples=num_samples,
    )


@dataclass(kw_only=True)
class Probing:
    """K completions of each prompt, sampled as many at a time as a step samples."""

    config: RunConfig  # the run's
    run: Run
    state: RunState
    prompts: Sequence[Prompt]
    num_samples: int
    groups: list[Group] = field(default_factory=list)
    load_seconds: float = 0.0
    # Seconds and tokens of each batch that was sampled.
    _generated: list[tuple[float, int]] = field(default_factory=list)
    _score_seconds: float = 0.0
    _update_seconds: float | None = None  # of a whole step, beside sampling
    _update_problem: str = ""

    def close(self) -> None:
        self.run.close()

    def sample(self, *, on_prompt: Callable[[int], None]) -> Iterator[list[Group]]:
        """Give the scored groups, batch by batch; told of each prompt as it is done."""
        at_once = max(1, self.config.completions_per_step // self.num_samples)
        for first in range(0, len(self.prompts), at_once):
            groups = self._sample(self.prompts[first : first + at_once], on_prompt)
            self.groups += groups
            yield groups

    def _sample(
        self, prompts: Sequence[Prompt], on_prompt: Callable[[int], None]
    ) -> list[Group]:
        config = self.config
        scores_steps = config.advantage.credit == "process"
        scoring = self.run.scorer.begin(
            prompts,
            config.reward,
            tokenizer=self.run.engine.tokenizer if scores_steps else None,
        )

        def add(index: int, completions: tuple[Rollout, ...]) -> None:
            scoring.add(index, completions)
            on_prompt(index)

        begin = time.perf_counter()
        completions = make_sampler(self.run.engine, config).play(
            prompts,
            _seeds(prompts, seed=config.seed, num_samples=self.num_samples),
            SamplingParams.of(config.rollout),
            on_group=add,
        )
        sampled = time.perf_counter()
        groups = penalise_overlong(scoring.finish(completions), config)
        self._score_seconds += time.perf_counter() - sampled
        num_tokens = sum(
            c.num_policy_tokens for group in groups for c in group.completions
        )
        self._generated.append((sampled - begin, num_tokens))
        return groups

    def time_update(self) -> None:
        """Train on the sampled part of a step, and discard the policy.

        A failure, such as out of memory, goes into the report: the samples stay useful.
        """
        rollout = self.config.rollout
        size = min(rollout.group_size, self.num_samples)
        groups = [
            Group(
                prompt=group.prompt,
                completions=group.completions[:size],
                scores=group.scores[:size],
                step_scores=group.step_scores and group.step_scores[:size],
            )
            for group in self.groups[: rollout.prompts_per_step]
        ]
        num_completions = sum(len(group.completions) for group in groups)
        if not num_completions:
            return
        try:
            enter_phase(
                self.run, self.state, self.state.config.phase_configs[0], saved=None
            )
            seconds = self._train_on(groups)
            if seconds < _QUICK_SECONDS:
                seconds = min(seconds, self._train_on(groups))
        except Exception as error:  # noqa: BLE001 - it is what the report must say
            self._update_problem = explain(error)
            return
        share = self.config.completions_per_step / num_completions
        self._update_seconds = seconds * share

    def _train_on(self, groups: list[Group]) -> float:
        batch = SampledBatch(
            step=1,
            own_prompts=frozenset(group.prompt.index for group in groups),
            num_updates=0,
            gathered=Gathered(
                groups=groups,
                dropped=[],
                num_rounds=1,
                num_sampled_tokens=0,
                has_signal=True,
                scoring_seconds=0.0,
            ),
        )
        fit_to_memory(self.run, self.state)
        begin = time.perf_counter()
        train_on(self.run, self.state, batch, watch=Stopwatch())
        if self.run.policy.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    def metrics(self) -> Metrics:
        """Return the measured metrics: those of `trainer.evaluation`, and

        num_prompts num_samples num_unscored   prompts, completions of each, of all
        signal/share /low /high                of groups of the run's size whose
                                               rewards differ: `chance_of_signal`
        group/seen                             share of the sampled groups that did
        length/p50 length/max                  completion tokens
        tokens_per_second                      sampled; from the second batch on
        step/tokens                            tokens that a step of the run samples
        step/generate step/score step/update   seconds of a step of the run: of its
        step/total                             completions at this length and speed
        peak_bytes                             of GPU memory, or of the process
        """
        metrics: Metrics = {
            "num_prompts": len(self.groups),
            "num_samples": self.num_samples,
            "group_size": self.config.rollout.group_size,
            "seconds/load": self.load_seconds,
            "peak_bytes": _peak_bytes(self.run.policy.device),
            "device": device_name(self.run.policy.device),
            "update_problem": self._update_problem or None,
        }
        if self.groups:
            recipe = self.config.reward.recipe
            measured = evaluation_metrics(
                self.groups,
                bounds=recipe_bounds(recipe),
                correctness=correctness_of(recipe),
                read_answer=answer_reader(recipe),
            )
            lengths = [
                completion.num_policy_tokens
                for group in self.groups
                for completion in group.completions
            ]
            unscored = [s for g in self.groups for s in g.scores if s.total is None]
            metrics |= {
                **measured,
                "num_unscored": len(unscored),
                "length/p50": statistics.median(lengths),
                "length/max": max(lengths),
            } | self._of_signal()
            metrics |= self._of_time(metrics)
        return metrics

    def _of_signal(self) -> Metrics:
        chances = chance_of_signal(
            [group.scored_rewards for group in self.groups],
            group_size=self.config.rollout.group_size,
        )
        low, high = mean_interval(chances[:, None], num_samples=1)
        seen = [differs(group, self.config) for group in self.groups]
        return {
            "signal/share": float(chances.mean()),
            "signal/low": float(low[0]),
            "signal/high": float(high[0]),
            "group/seen": sum(seen) / len(seen),
        }

    def _of_time(self, metrics: Metrics) -> Metrics:
        # The first batch also loads what is loaded late.
        counted = self._generated[1:] or self._generated
        seconds = sum(seconds_of_part for seconds_of_part, _ in counted)
        num_tokens = sum(tokens for _, tokens in counted)
        rate = num_tokens / seconds if seconds > 0 else 0.0
        num_sampled = sum(len(group.completions) for group in self.groups)
        num_completions = self.config.completions_per_step * self._rounds(metrics)
        length = metrics["mean_length"]
        assert isinstance(length, float)
        tokens = num_completions * length
        generate = tokens / rate if rate else None
        score = self._score_seconds / num_sampled * num_completions
        parts = (generate, score, self._update_seconds)
        scored = [part for part in parts if part is not None]
        return {
            "tokens_per_second": rate,
            "step/tokens": tokens,
            "step/generate": generate,
            "step/score": score,
            "step/update": self._update_seconds,
            "step/total": sum(scored) if len(scored) == len(parts) else None,
        }

    def _rounds(self, metrics: Metrics) -> float:
        """Estimate the rounds of sampling in a step: refills replace groups without
        signal.
        """
        rollout = self.config.rollout
        share = metrics["signal/share"]
        if rollout.dynamic_sampling != "refill" or not isinstance(share, float):
            return 1.0
        return min(1.0 + rollout.max_refills, 1.0 / share) if share else 1.0


def _seeds(
    prompts: Sequence[Prompt], *, seed: int, num_samples: int
) -> list[list[int]]:
    return [
        [derive(seed, "probe", prompt.index, k) for k in range(num_samples)]
        for prompt in prompts
    ]


def _peak_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.max_memory_reserved(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="run configuration, TOML or JSON")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help=("file to append lines to"),
    )
    parser.add_argument(
        "--prompts",
        type=int,
        metavar="N",
        help="first N rows of data.rows (default: all)",
    )
    parser.add_argument(
        "--samples",
        type=int,
        metavar="K",
        help="completions per prompt (default: rollout.group_size)",
    )
    parser.add_argument(
        "--sample-only",
        action="store_true",
        help="skip the update that measures the step time",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="also sample this checkpoint of the run, next to its base model",
    )
    parser.add_argument(
        "--no-scores",
        action="store_true",
        help="with --checkpoint: do not score completions",
    )


def main(args: argparse.Namespace) -> int:
    """Sample, score and measure; the exit code is one of `run`'s."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        opened = _Lines(args.out)
    except OSError as error:
        sys.stderr.write(f"--out {args.out} cannot be written: {error.strerror}.\n")
        return EXIT_BAD_CONFIG
    with opened as lines:
        try:
            return _probe(args, lines)
        except Stopped:
            return EXIT_STOPPED
        except ValueError as error:
            sys.stderr.write(f"{error}\n")
            lines.add("failed", error=str(error))
            return EXIT_BAD_CONFIG
        except Exception as error:  # noqa: BLE001 - whatever it is, the file must say it
            traceback.print_exc()
            lines.add("failed", error=explain(error))
            return EXIT_FAILED


def _probe(args: argparse.Namespace, lines: _Lines) -> int:
    watch_parent()
    config = read_config(args.config)
    samples = args.samples or config.rollout.group_size
    begin = time.perf_counter()
    lines.add("phase", name="loading")
    with closing(Scorer(config.reward.num_workers)) as scorer:
        if args.checkpoint is not None:
            _sample_both(
                args, config, samples, None if args.no_scores else scorer, lines
            )
            return EXIT_FINISHED
        probing = load_probing(
            config_of_probe(config),
            folder=args.config.parent,
            num_prompts=args.prompts,
            num_samples=samples,
            scorer=scorer,
        )
        with closing(probing):
            probing.load_seconds = time.perf_counter() - begin
            try:
                _sample(probing, lines)
                if not args.sample_only:
                    lines.add("phase", name="updating")
                    probing.time_update()
            except Stopped:
                # What was sampled until now is worth as much as it was.
                lines.add("measured", metrics=probing.metrics())
                raise
            lines.add("measured", metrics=probing.metrics())
    return EXIT_FINISHED


def _sample(probing: Probing, lines: _Lines) -> None:
    lines.add("phase", name="sampling")
    for groups in probing.sample(on_prompt=lines.count(len(probing.prompts))):
        for group in groups:
            _add_group(lines, group)


def _add_group(lines: _Lines, group: Group, **more: bool) -> None:
    lines.add(
        "group",
        row=group.prompt.index,
        completions=[
            {
                "text": completion.text,
                "num_tokens": completion.num_policy_tokens,
                "end_reason": completion.end_reason,
                "reward": score.total,
                "rules": score.rules,
                "errors": score.errors,
                **_turns(completion),
            }
            for completion, score in zip(group.completions, group.scores, strict=True)
        ],
        usage=add_usage(group.scores),
        **more,
    )


def _turns(completion: Rollout) -> dict[str, Any]:
    records = turn_records(completion)
    return {"turns": [r.model_dump(mode="json") for r in records]} if records else {}


def _sample_both(
    args: argparse.Namespace,
    config: RunConfig,
    num_samples: int,
    scorer: Scorer | None,
    lines: _Lines,
) -> None:
    """Sample the checkpoint, then the model that its run was launched with.

    One model is in memory at a time, and the trainer's own decoder samples: vLLM would
    take longer to start twice than these few completions take.
    """
    checkpoint: Path = args.checkpoint
    _check_is_there(checkpoint)
    config = config.config_at(saved_step(checkpoint))
    require_packages(config)
    set_up_torch(config)
    if scorer is not None:
        check_rules(config.reward.recipe)
    rows = read_rows(args.config.parent / config.data.rows)[: args.prompts]
    tell = lines.count(2 * len(rows))
    for is_base in (False, True):
        policy = _load_side(config, checkpoint, is_base=is_base)
        policy.fix_longest(config.longest_sequence)
        lines.add("phase", name="sampling")
        for group in _sample_side(
            policy, rows, config, num_samples, scorer, on_prompt=tell
        ):
            _add_group(lines, group, is_base=is_base)
        del policy
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _load_side(config: RunConfig, checkpoint: Path, *, is_base: bool) -> Policy:
    if is_base:
        return load_policy(config.model.model_copy(update={"lora_rank": 0}))
    try:
        return restore_policy(config.model, checkpoint)
    except (ValueError, OSError):
        _check_is_there(checkpoint)  # the run may have deleted it meanwhile
        raise


def _check_is_there(checkpoint: Path) -> None:
    if not checkpoint.is_dir():
        raise ValueError(
            f"The files of {checkpoint.name} were deleted. Choose a newer checkpoint."
        )


def _sample_side(
    policy: Policy,
    rows: Sequence[Row],
    config: RunConfig,
    num_samples: int,
    scorer: Scorer | None,
    *,
    on_prompt: Callable[[int], None],
) -> list[Group]:
    """Sample, with the scores that an evaluation gives: by the weights a schedule ends
    with.
    """
    check_environment(policy.tokenizer, config, rows[0], eos_ids=policy.eos_ids)
    renderer = make_renderer(
        policy.tokenizer,
        config.data,
        config.environment,
        seed=config.seed,
        num_embeddings=policy.num_embeddings,
    )
    prompts = [renderer.render(row) for row in rows]
    engine = own_decoder(partial(TransformersEngine, policy), config)
    completions = make_sampler(engine, config).play(
        prompts,
        _seeds(prompts, seed=config.seed, num_samples=num_samples),
        SamplingParams.of(config.rollout),
        on_group=lambda index, _: on_prompt(index),
    )
    if scorer is not None:
        return scorer.begin(prompts, config.reward, step=AT_THE_END).finish(completions)
    unscored = Score(total=None, rules={}, errors={})
    return [
        Group(prompt=prompt, completions=members, scores=(unscored,) * len(members))
        for prompt, members in zip(prompts, completions, strict=True)
    ]


class _Lines:
    """A file that lines are added to, each at once: someone is following it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()

    def count(self, total: int) -> Callable[[int], None]:
        """Return what adds a line for each of so many prompts."""
        done = count(1)
        return lambda _index: self.add("progress", done=next(done), total=total)

    def add(self, kind: str, **fields: Any) -> None:
        self._file.write(json.dumps({"type": kind, **fields}, allow_nan=False) + "\n")
        self._file.flush()


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process
    raise Stopped
