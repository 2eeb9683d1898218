"""Samples, scores and selects the groups of a step, and saves them in a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from math import isnan
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from trainer.algorithm.advantages import group_advantages
from trainer.algorithm.credit import rule_rewards, rule_weights, step_rewards
from trainer.config import RunConfig
from trainer.curriculum import Draw
from trainer.data import Prompt
from trainer.parallel.world import ALONE, World
from trainer.rewards.scoring import Score, penalised
from trainer.rollout.sources import CompletionSource
from trainer.scoring import HERE, Scorer
from trainer.types import Group, Rollout, StepScore, ToolCall, Turn, reward_matrix


def penalise_overlong(groups: Sequence[Group], config: RunConfig) -> list[Group]:
    """Lower each reward by `overlong_penalty` times the completion's fraction."""
    reward = config.reward
    return [
        replace(
            group,
            scores=tuple(
                penalised(
                    score,
                    completion.num_policy_tokens,
                    max_new_tokens=config.rollout.max_new_tokens,
                    buffer=reward.overlong_buffer_tokens,
                    penalty=reward.overlong_penalty,
                )
                for score, completion in zip(
                    group.scores, group.completions, strict=True
                )
            ),
        )
        for group in groups
    ]


class Watch(Protocol):
    """Measures the seconds of a phase."""

    def phase(self, name: str) -> AbstractContextManager[None]: ...


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """The groups of a step."""

    groups: list[Group]  # that are trained on
    dropped: list[Group]  # that are not
    num_rounds: int
    num_sampled_tokens: int  # of all completions, dropped ones too
    has_signal: bool  # false: nothing differs, the groups are those of round 0
    scoring_seconds: float  # of this process's share, added up over its workers
    idle_seconds: float = 0.0  # in which its engine waited for environments

    @property
    def sampled(self) -> list[Group]:
        """The groups of all rounds, those that are trained on first."""
        return [*self.groups, *self.dropped]

    @property
    def metrics(self) -> dict[str, float | None]:
        """The time of scoring and of environments, and what dynamic sampling cost and
        left out.
        """
        completions = [c for group in self.sampled for c in group.completions]
        replies = [t for c in completions for t in c.turns if t.author != "policy"]
        of_environments: dict[str, float | None] = {
            "time/environment": sum(reply.seconds or 0.0 for reply in replies),
            "time/environment_idle": self.idle_seconds,
        }
        return {
            "time/score_work": self.scoring_seconds,
            **(of_environments if replies else {}),
            "sampling/num_rounds": float(self.num_rounds),
            "sampling/num_dropped": float(len(self.dropped)),
            "sampling/frac_dropped": len(self.dropped) / len(self.sampled),
            "sampling/num_tokens": float(self.num_sampled_tokens),
            "sampling/num_completions": float(len(completions)),
            "sampling/without_signal": float(not self.has_signal),
        }


def gather(
    source: CompletionSource,
    prompts_of_round: Callable[[int], Sequence[Prompt]],
    config: RunConfig,
    *,
    step: int,
    watch: Watch,
    world: World = ALONE,
    scorer: Scorer = HERE,
) -> Gathered:
    """Sample and score the groups of a step, with `dynamic_sampling`.

    off: all groups of round 0. drop: those of round 0 that differ (`differs`). refill:
    further rounds sample as many prompts as are missing, at most `max_refills` of
    them, fewer where the prompts run out (arXiv:2503.14476, section 3.2). Where no
    group of any round differs, those of round 0 are kept, so that every step has a
    batch: its advantages are 0.

    Args:
        source: writes the completions.
        prompts_of_round: round 0 gives the step's own prompts; later ones give distinct
            prompts that no other round of the step gives. It must follow from seed,
            step and round alone, so that a resumed run gathers the same.
        config: of the run or phase.
        step: counted from 1 over the whole run.
        watch: measures "generate" and "score", the time that scoring takes beyond
            generating.
        world: each process samples and scores its share of the prompts. Completions do
            not depend on the process, and every process gets all of them.
    """
    mode = config.rollout.dynamic_sampling
    num_prompts = config.rollout.prompts_per_step
    kept_groups: list[Group] = []
    dropped: list[Group] = []
    first: list[Group] = []
    num_tokens = num_rounds = 0
    scoring_seconds = 0.0
    idle_before = source.idle_seconds
    for turn in range(1 + (config.rollout.max_refills if mode == "refill" else 0)):
        missing = num_prompts - len(kept_groups)
        prompts = prompts_of_round(turn)[: missing if turn else None]
        if missing == 0 or not prompts:
            break
        own, seconds = _sample(
            source,
            world.share(prompts),
            config,
            step=step,
            watch=watch,
            scorer=scorer,
        )
        scoring_seconds += seconds
        with watch.phase("generate"):  # which is what others are waited for
            groups = world.join(own)
        num_rounds += 1
        num_tokens += sum(c.num_policy_tokens for g in groups for c in g.completions)
        first = first or groups
        for group in groups:
            is_kept = mode == "off" or differs(group, config, step=step)
            (kept_groups if is_kept else dropped).append(group)
    has_signal = any(differs(group, config, step=step) for group in kept_groups)
    if not kept_groups:
        kept_groups, dropped = first, dropped[len(first) :]
    return Gathered(
        groups=kept_groups,
        dropped=dropped,
        num_rounds=num_rounds,
        num_sampled_tokens=num_tokens,
        has_signal=has_signal,
        scoring_seconds=scoring_seconds,
        idle_seconds=source.idle_seconds - idle_before,
    )


def _sample(
    source: CompletionSource,
    prompts: Sequence[Prompt],
    config: RunConfig,
    *,
    step: int,
    watch: Watch,
    scorer: Scorer,
) -> tuple[list[Group], float]:
    """Give the scored groups, and the seconds of scoring; some of it while sampling."""
    scores_steps = config.advantage.credit == "process"
    scoring = scorer.begin(
        prompts,
        config.reward,
        step=step,
        tokenizer=source.tokenizer if scores_steps else None,
    )
    with watch.phase("generate"):
        completions = source.complete(prompts, step, on_group=scoring.add)
    with watch.phase("score"):
        groups = penalise_overlong(scoring.finish(completions), config)
    return groups, scoring.seconds


def differs(group: Group, config: RunConfig, *, step: int = 1) -> bool:
    """Return whether the compared rewards of a group differ, before any scaling.

    These are its rewards; if rules are normalised separately, those of any rule with a
    weight at this step; with credit = "process", those of its steps. With pass@k an
    advantage must be other than 0: none is where too few are wrong for a subset of k.
    """
    advantage = config.advantage
    if advantage.is_pass_at_k:
        return bool(group_advantages(reward_matrix([group]), advantage).any())
    compared: list[Sequence[float]] = [group.scored_rewards]
    if advantage.credit == "process":
        compared = [[reward for rewards in step_rewards(group) for reward in rewards]]
    elif config.compares_rules:
        by_rule = zip(*rule_rewards(group, config.reward), strict=True)
        weights = rule_weights(config.reward, step=step)
        compared = [
            values for values, weight in zip(by_rule, weights, strict=True) if weight
        ]
    return any(len({v for v in values if not isnan(v)}) > 1 for values in compared)


_GROUPS = "groups.json"
_TOKENS = "tokens.safetensors"


@dataclass(frozen=True, kw_only=True)
class SampledBatch:
    """The groups of a step, and which weights they were sampled with."""

    step: int  # that trains on them
    own_prompts: frozenset[int]  # rows of the step's own prompts, without refills
    num_updates: int  # of the phase, that the weights had seen
    gathered: Gathered
    drawn: Draw | None = None  # how a curriculum chose the prompts; None: it did not


def save_batch(folder: Path, batch: SampledBatch) -> None:
    """Write a batch into a new folder: tokens and log-probs, and all else as JSON."""
    folder.mkdir(parents=True)
    gathered, groups = batch.gathered, batch.gathered.sampled
    completions = [completion for group in groups for completion in group.completions]
    ids = chain.from_iterable(completion.token_ids for completion in completions)
    logprobs = chain.from_iterable(completion.logprobs for completion in completions)
    tensors = {
        "token_ids": torch.from_numpy(np.fromiter(ids, np.int64)),
        "logprobs": torch.from_numpy(np.fromiter(logprobs, np.float64)),
    }
    save_file(tensors, folder / _TOKENS)
    story = {
        "step": batch.step,
        "own_prompts": sorted(batch.own_prompts),
        "num_updates": batch.num_updates,
        # of the places none is asked for any more, and there may be a million
        "drawn": batch.drawn and asdict(replace(batch.drawn, places=[])),
        "num_rounds": gathered.num_rounds,
        "num_sampled_tokens": gathered.num_sampled_tokens,
        "has_signal": gathered.has_signal,
        "scoring_seconds": gathered.scoring_seconds,
        "num_kept": len(gathered.groups),
        "groups": [
            {
                "prompt_index": group.prompt.index,
                "step_scores": group.step_scores,
                "completions": [
                    {
                        "turns": [_turn_tree(turn) for turn in completion.turns],
                        "episode": {
                            "is_episode": completion.is_episode,
                            "error": completion.error,
                            "reward": completion.reward,
                            "metrics": dict(completion.metrics),
                        },
                        "end_reason": completion.end_reason,
                        "is_stopped_by_text": completion.is_stopped_by_text,
                        "total": score.total,
                        "rules": score.rules,
                        "errors": score.errors,
                        "not_applicable": score.not_applicable,
                        "logs": score.logs,
                        "metrics": score.metrics,
                        "usage": score.usage,
                    }
                    for completion, score in zip(
                        group.completions, group.scores, strict=True
                    )
                ],
            }
            for group in groups
        ],
    }
    (folder / _GROUPS).write_text(json.dumps(story), encoding="utf-8")


def _turn_tree(turn: Turn) -> dict[str, Any]:
    return {
        "author": turn.author,
        "text": turn.text,
        "num_tokens": len(turn.token_ids),
        "is_sampled": turn.logprobs is not None,
        "of_episode": {
            "calls": [asdict(call) for call in turn.calls],
            "seconds": turn.seconds,
            "shown": turn.shown,
            "reward": turn.reward,
            "has_end_token": turn.has_end_token,
        },
    }


def load_batch(folder: Path, prompts: Sequence[Prompt]) -> SampledBatch:
    """Return what `save_batch` wrote, of these prompts.

    Raises:
        ValueError: a prompt is not among them.
    """
    story = json.loads((folder / _GROUPS).read_bytes())
    tensors = load_file(folder / _TOKENS)
    ids = iter(tensors["token_ids"].tolist())
    logprobs = iter(tensors["logprobs"].tolist())
    rows = {prompt.index: prompt for prompt in prompts}
    groups = [
        _group_of(tree, rows, ids=ids, logprobs=logprobs) for tree in story["groups"]
    ]
    return SampledBatch(
        step=story["step"],
        own_prompts=frozenset(story["own_prompts"]),
        num_updates=story["num_updates"],
        drawn=Draw(**tree) if (tree := story.get("drawn")) else None,
        gathered=Gathered(
            groups=groups[: story["num_kept"]],
            dropped=groups[story["num_kept"] :],
            num_rounds=story["num_rounds"],
            num_sampled_tokens=story["num_sampled_tokens"],
            has_signal=story["has_signal"],
            scoring_seconds=story["scoring_seconds"],
        ),
    )


def _group_of(
    tree: Mapping[str, Any],
    rows: Mapping[int, Prompt],
    *,
    ids: Iterator[int],
    logprobs: Iterator[float],
) -> Group:
    index, steps = tree["prompt_index"], tree["step_scores"]
    if index not in rows:
        raise ValueError(
            f"The checkpoint contains completions of row {index} (line {index + 1}), "
            "which is not a training row here. Resume with the rows and the "
            "configuration of the checkpoint."
        )
    return Group(
        prompt=rows[index],
        completions=tuple(
            Rollout(
                turns=tuple(
                    _turn_of(turn, ids=ids, logprobs=logprobs)
                    for turn in completion["turns"]
                ),
                end_reason=completion["end_reason"],
                is_stopped_by_text=completion.get("is_stopped_by_text", False),
                **completion.get("episode", {}),
            )
            for completion in tree["completions"]
        ),
        scores=tuple(
            Score(
                score["total"],
                score["rules"],
                score["errors"],
                score.get("not_applicable", []),
                score.get("logs", {}),
                score.get("metrics", {}),
                score.get("usage", {}),
            )
            for score in tree["completions"]
        ),
        step_scores=None
        if steps is None
        else tuple(
            tuple(StepScore(*score) for score in step_scores) for step_scores in steps
        ),
    )


def _turn_of(
    tree: Mapping[str, Any], *, ids: Iterator[int], logprobs: Iterator[float]
) -> Turn:
    count = tree["num_tokens"]
    values = tuple(islice(logprobs, count))
    more = dict(tree.get("of_episode", {}))
    if more:
        more["calls"] = tuple(ToolCall(**call) for call in more["calls"])
        more["shown"] = more["shown"] and tuple(map(tuple, more["shown"]))
    return Turn(
        author=tree["author"],
        text=tree["text"],
        token_ids=tuple(islice(ids, count)),
        logprobs=values if tree["is_sampled"] else None,
        **more,
    )
