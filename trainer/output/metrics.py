"""Metrics of a step."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from trainer.algorithm.advantages import Floats, group_std
from trainer.algorithm.token_stats import TokenStatistics, sampling_kl
from trainer.config import RunConfig
from trainer.events import RankMeasured, RanksMeasured, Signal
from trainer.output.log import EventLog
from trainer.parallel.world import World, waited_seconds
from trainer.rewards.scoring import Score, signal_of
from trainer.rewards.spec import Recipe
from trainer.run.outcome import StepOutcome
from trainer.types import REWRITTEN, Group, reward_matrix


class Stopwatch:
    """Seconds spent in each phase of a step.

    With a batch that was sampled ahead, "generate" is what the step waited for one.
    """

    def __init__(self) -> None:
        self._begin, self._waited_before = time.perf_counter(), waited_seconds()
        self._seconds = dict.fromkeys(
            ("generate", "score", "logprobs", "update", "sync"), 0.0
        )
        self._waits = dict.fromkeys(self._seconds, 0.0)  # for other ranks
        self._ahead: Stopwatch | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin, waited_before = time.perf_counter(), waited_seconds()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begin
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
            if name in self._waits:  # else within another phase
                self._waits[name] += waited_seconds() - waited_before

    def add_ahead(self, other: Stopwatch) -> None:
        """Tell as well how long the next step's sampling took beside this one."""
        self._ahead = other
        for name in ("generate", "score"):
            self._seconds[f"ahead_{name}"] = other._seconds[name]

    def own_seconds(self) -> dict[str, float | None]:
        """`RankMeasured.seconds`: what other ranks took is left out.

        Of a batch sampled ahead, generate and score are those of the sampling thread.
        What this thread waited for it counts as work only as far as it worked itself.
        """
        step = time.perf_counter() - self._begin
        wait = waited_seconds() - self._waited_before
        own = {name: self._seconds[name] - self._waits[name] for name in self._waits}
        if self._ahead is not None:
            for_thread = own["generate"]
            wait += min(for_thread, sum(self._ahead._waits.values()))
            for name in ("generate", "score"):
                own[name] = self._ahead._seconds[name] - self._ahead._waits[name]
        return {**own, "work": max(0.0, step - wait), "wait": wait, "step": step}

    def metrics(self, *, num_tokens: int) -> dict[str, float | None]:
        """Times in seconds, and completion tokens a second of the whole step."""
        step = time.perf_counter() - self._begin
        named: dict[str, float | None] = {
            f"time/{name}": seconds for name, seconds in self._seconds.items()
        }
        return named | {"time/step": step, "tokens_per_second": num_tokens / step}


def reward_metrics(
    groups: Sequence[Group], recipe: Recipe, *, ddof: int
) -> dict[str, float | None]:
    """Return rewards over the batch, each rule's mean, and the spread within groups.

    `reward/std` is over all completions, as are the 10th and the 90th percentile;
    `group/std_mean` is the mean of the groups' own deviations, the one that tells
    whether there is anything to learn.
    """
    rewards = reward_matrix(groups)
    scored = ~np.isnan(rewards)
    values = np.where(scored, rewards, 0.0)
    flat = values[scored]
    spreads = group_std(values, scored, ddof=ddof)[scored.any(axis=1)]
    low, high = np.percentile(flat, (10, 90)).tolist() if len(flat) else (None, None)
    metrics: dict[str, float | None] = {
        "reward/mean": _mean(flat),
        "reward/std": group_std(
            values.reshape(1, -1), scored.reshape(1, -1), ddof=ddof
        ).item()
        if len(flat)
        else None,
        "reward/p10": low,
        "reward/p90": high,
        "group/std_mean": _mean(spreads),
    }
    scores = [score for group in groups for score in group.scores]
    # the recipe's rules, and parts that others added, such as a penalty for length
    names = dict.fromkeys([rule.name for rule in recipe.rules])
    names |= dict.fromkeys(name for score in scores for name in score.rules)
    for name in names:
        scores_of_rule = [score.rules.get(name) for score in scores]
        scores_known = np.array(
            [v for v in scores_of_rule if v is not None], dtype=np.float64
        )
        metrics[f"reward/{name}/mean"] = _mean(scores_known)
    return metrics


def own_metrics(scores: Iterable[Score]) -> dict[str, float]:
    """Return means of the numbers that rules give beside their scores, where they give
    one.
    """
    values_by_name: dict[str, list[float]] = {}
    for score in scores:
        for rule, numbers in score.metrics.items():
            for key, number in numbers.items():
                values_by_name.setdefault(f"reward/{rule}/{key}/mean", []).append(
                    number
                )
    return {name: sum(values) / len(values) for name, values in values_by_name.items()}


def signal_metrics(signals: Sequence[Signal]) -> dict[str, float | None]:
    """Return how many groups teach, and why the others do not."""
    count = Counter(signals)
    total = len(signals)
    return {
        "group/frac_zero_std": 1 - count["mixed"] / total,
        "group/frac_all_max": count["all_right"] / total,
        "group/frac_all_min": count["all_wrong"] / total,
        "group/frac_tied": count["tied"] / total,
        "group/frac_unscorable": count["unscorable"] / total,
        "group/num_effective": float(count["mixed"]),
    }


def completion_metrics(groups: Sequence[Group]) -> dict[str, float | None]:
    lengths = [c.num_policy_tokens for group in groups for c in group.completions]
    cut = [c.end_reason == "length" for group in groups for c in group.completions]
    return {
        "completion/mean_length": sum(lengths) / len(lengths),
        "completion/max_length": float(max(lengths)),
        "completion/frac_truncated": sum(cut) / len(cut),
    }


def share_of_waits(times: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the share of sampling in which the sampler waited for environments.

    With one_step_off, sampling is that of the next batch, which is timed in this step.
    """
    idle = times.get("time/environment_idle")
    sampling = times.get("time/ahead_generate") or times["time/generate"]
    if idle is None or not sampling:
        return {}
    return {"time/environment_share": min(idle / sampling, 1.0)}


_MOST_TURNS = 8  # that have a reward of their own in a chart


def episode_metrics(groups: Sequence[Group]) -> dict[str, float | None]:
    """Return what episodes had of turns, calls and ends; nothing of other runs."""
    episodes = [c for group in groups for c in group.completions if c.is_episode]
    if not episodes:
        return {}
    count = len(episodes)
    replies = [t for c in episodes for t in c.turns if t.author != "policy"]
    calls = [call for reply in replies for call in reply.calls]
    ends = Counter(episode.end_reason for episode in episodes)
    metrics: dict[str, float | None] = {
        "episode/num_turns": sum(len(c.policy_turns) for c in episodes) / count,
        "episode/num_tool_calls": len(calls) / count,
        "episode/frac_failed": (ends["failed"] + ends["timeout"]) / count,
        "episode/frac_rewritten": sum(c.error == REWRITTEN for c in episodes) / count,
        "episode/frac_out_of_turns": ends["turns"] / count,
        "episode/reply_tokens": sum(len(t.token_ids) for t in replies) / count,
    }
    if calls:
        metrics["episode/frac_tool_errors"] = sum(
            bool(call.error) for call in calls
        ) / len(calls)
    for number in range(_MOST_TURNS):
        rewards = [
            turn.reward
            for episode in episodes
            for turn in episode.policy_turns[number : number + 1]
            if turn.reward is not None
        ]
        if rewards:
            metrics[f"reward/turn{number + 1}"] = sum(rewards) / len(rewards)
    return metrics


def _mean(values: Floats) -> float | None:
    return values.mean().item() if len(values) else None


def update_metrics(
    outcome: StepOutcome, *, samples_kl: bool = False
) -> dict[str, float | None]:
    """Return loss, gradient norm and token statistics over a step's updates.

    The mismatch of engine and trainer is measured in the first update only, where both
    have the same weights. With one_step_off they do not: the difference is mostly the
    update between them, and is reported as staleness.
    """
    updates = outcome.updates
    done = [result for result in updates if not result.is_skipped]
    tokens = TokenStatistics.joined([result.statistics for result in updates])
    first = updates[0].statistics.mismatch
    own = first if outcome.is_on_policy else None
    between = first if outcome.is_one_off else None
    measured = replace(tokens, mismatch=own).metrics(samples_kl=samples_kl)
    if samples_kl and "kl/sampled_tokens" in measured:  # each pass has the same tokens
        measured["kl/sampled_tokens"] /= len(updates) // len(outcome.minibatches)
    return {
        "loss": sum(u.loss for u in done) / len(done) if done else None,
        "grad_norm": sum(u.grad_norm for u in done) / len(done) if done else None,
        **measured,
        **_given("staleness/kl", None if between is None else sampling_kl(between)),
    }


def weight_metrics(recipe: Recipe, *, step: int) -> dict[str, float | None]:
    """Return the weights that follow a schedule, at a step of the run."""
    return {
        f"reward/{rule.name}/weight": rule.weight_at(step)
        for rule in recipe.rules
        if rule.schedule is not None
    }


def step_metrics(
    outcome: StepOutcome, config: RunConfig, *, step: int = 1
) -> dict[str, float | None]:
    """Return all metrics of a step except times and numbers that rules give by name.

    Rewards, signals and lengths are those of the step's own prompts, without refills;
    sampling/…, advantage/… and the updates cover all that was sampled or trained on.
    """
    groups = outcome.first_round
    updated = update_metrics(outcome, samples_kl=config.samples_kl)
    if config.distils and config.loss.kl_estimator == "full":
        updated |= _given("distill/kl", updated.get("kl/mean"))
    recipe, drawn = config.reward.recipe, outcome.drawn
    signals = [signal_of(group.scores, recipe, step=step) for group in groups]
    is_mixed = {
        group.prompt.index: signal == "mixed"
        for group, signal in zip(groups, signals, strict=True)
    }
    return (
        reward_metrics(groups, recipe, ddof=config.advantage.ddof)
        | weight_metrics(recipe, step=step)
        | signal_metrics(signals)
        | ({} if drawn is None else drawn.metrics(is_mixed))
        | completion_metrics(groups)
        | episode_metrics(groups)
        | outcome.gathered.metrics
        | {"advantage/abs_mean": float(np.abs(outcome.advantages).mean())}
        | updated
        | {"lr": outcome.learning_rate}
        | _given("kl/coef", outcome.kl_coef)
        | _given("entropy/coef", outcome.entropy_coef)
        | _given("staleness/mean", outcome.staleness)
    )


def _given(name: str, value: float | None) -> dict[str, float | None]:
    return {} if value is None else {name: value}


# What each process of a run uses: its node, device, memory and times of a step.


def record_ranks(
    log: EventLog, world: World, device: torch.device, watch: Stopwatch, *, step: int
) -> None:
    """Add the step's times and memory of all ranks to the log; all ranks call it.

    Gathering them takes 1 ms with 2 processes of one machine.
    """
    if world.size == 1:
        return
    memory, total = _memory_of(device)
    own = RankMeasured(
        node=socket.gethostname(),
        device=_name_of(device),
        memory_bytes=memory,
        memory_total_bytes=total,
        seconds={
            name: None if value is None else float(f"{value:.4g}")
            for name, value in watch.own_seconds().items()
        },
    )
    log.add(RanksMeasured, step=step, ranks=world.gather(own))


@cache
def _name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _memory_of(device: torch.device) -> tuple[int | None, int | None]:
    """Used and all: of the GPU by all processes, as an engine may share it."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free, total
    page = resource.getpagesize()
    total = page * os.sysconf("SC_PHYS_PAGES")
    try:
        statm = Path("/proc/self/statm").read_text("ascii")
    except OSError:  # not Linux
        return None, total
    return page * int(statm.split()[1]), total
