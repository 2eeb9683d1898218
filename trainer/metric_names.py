"""What a run measures: each metric's name, unit and meaning.

A part in angle brackets stands for a name: `reward/<rule>/mean`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    unit: str
    about: str  # Markdown
    has_interval: bool = False  # <name>/low and <name>/high: 95 % confidence

    def matches(self, name: str) -> bool:
        parts = re.split(r"<\w+>", self.name)
        pattern = "[^/]+".join(map(re.escape, parts))
        end = "(/low|/high)?" if self.has_interval else ""
        return re.fullmatch(pattern + end, name) is not None


METRICS: dict[str, tuple[Metric, ...]] = {
    "Reward": (
        Metric("reward/mean", "reward", "Mean reward of the step's completions."),
        Metric("reward/std", "reward", "Standard deviation over all completions."),
        Metric("reward/<rule>/mean", "score", "Mean score of a rule, before weights."),
        Metric("reward/<rule>/weight", "weight", "Weight of a rule with a schedule."),
        Metric("reward/overlong/mean", "reward", "Mean penalty for length."),
        Metric("advantage/abs_mean", "advantage", "Mean absolute advantage."),
    ),
    "Signal within groups": (
        Metric("group/std_mean", "reward", "Mean of the groups' standard deviations."),
        Metric("group/frac_zero_std", "share", "Groups whose rewards are all equal."),
        Metric("group/frac_all_max", "share", "Groups with the highest reward only."),
        Metric("group/frac_all_min", "share", "Groups with the lowest reward only."),
        Metric("group/frac_tied", "share", "Groups with one reward in between."),
        Metric("group/frac_unscorable", "share", "Groups that no rule could score."),
        Metric("group/num_effective", "groups", "Groups whose rewards differ."),
    ),
    "Dynamic sampling": (
        Metric("sampling/frac_dropped", "share", "Groups left out of the batch."),
        Metric("sampling/num_dropped", "groups", "Groups left out of the batch."),
        Metric("sampling/num_rounds", "rounds", "Rounds of sampling."),
        Metric("sampling/num_completions", "completions", "Sampled in all rounds."),
        Metric("sampling/num_tokens", "tokens", "Sampled in all rounds."),
        Metric("sampling/without_signal", "0 or 1", "1: no group has a signal."),
    ),
    "Policy": (
        Metric(
            "kl/mean",
            "nats per token",
            "KL between policy and reference, mean over tokens. With a KL weight of 0: "
            "to the start model, over a sample of tokens.",
        ),
        Metric("kl/sampled_tokens", "tokens", "Sample that `kl/mean` is measured on."),
        Metric("kl/p99", "nats per token", "99th percentile over tokens."),
        Metric("kl/max", "nats per token", "Largest KL of a token."),
        Metric("kl/coef", "weight", "KL weight while a controller adapts it."),
        Metric("entropy", "nats per token", "Entropy of the policy's next token."),
        Metric(
            "ratio/mean",
            "ratio",
            "Mean of the tokens' probability ratios, new policy to old.",
        ),
        Metric("ratio/max", "ratio", "Largest ratio of a token."),
        Metric("clip/frac", "share", "Tokens that any bound clips."),
        Metric("clip/frac_low", "share", "Tokens whose ratio the lower bound clips."),
        Metric("clip/frac_high", "share", "Tokens whose ratio the upper bound clips."),
        Metric("clip/frac_dual", "share", "Tokens that dual clip bounds."),
    ),
    "Optimization": (
        Metric("loss", "loss", "Mean loss of the step's updates."),
        Metric("grad_norm", "norm", "Gradient norm before clipping."),
        Metric("lr", "rate", "Learning rate."),
    ),
    "Completions": (
        Metric("completion/mean_length", "tokens", "Mean length."),
        Metric("completion/max_length", "tokens", "Longest completion."),
        Metric("completion/frac_truncated", "share", "Cut at the length limit."),
    ),
    "Off-policy": (
        Metric(
            "staleness/mean",
            "updates",
            "Updates between sampling and training, mean over the batch.",
        ),
        Metric(
            "staleness/kl",
            "nats per token",
            "KL from the weights that sampled the batch to the policy, one step off.",
        ),
        Metric(
            "mismatch/mean",
            "nats per token",
            "Mean absolute difference of the rollout engine's log-probs and the "
            "trainer's.",
        ),
        Metric("mismatch/max", "nats per token", "Largest such difference."),
        Metric("mismatch/kl", "nats per token", "KL from the engine to the trainer."),
        Metric("importance/mean", "weight", "Mean importance correction of tokens."),
        Metric("importance/frac_masked", "share", "Tokens that the correction drops."),
    ),
    "Held-out prompts": (
        Metric(
            "eval/<set>/mean",
            "reward",
            "Mean reward over prompts.",
            has_interval=True,
        ),
        Metric(
            "eval/<set>/pass@<k>",
            "share",
            "Chance that at least one of k completions gets the highest reward.",
            has_interval=True,
        ),
        Metric(
            "eval/<set>/maj@<k>",
            "share",
            "Prompts whose most frequent answer of k is right.",
            has_interval=True,
        ),
        Metric("eval/<set>/mean_length", "tokens", "Mean length of completions."),
        Metric("eval/<set>/frac_truncated", "share", "Cut at the length limit."),
    ),
    "Time": (
        Metric("time/step", "seconds", "A step, from sampling to the update."),
        Metric(
            "time/generate",
            "seconds",
            "Sampling; with sampling ahead, the wait for a batch.",
        ),
        Metric("time/score", "seconds", "Scoring after sampling has ended."),
        Metric("time/score_work", "seconds", "Scoring, added up over its processes."),
        Metric("time/logprobs", "seconds", "Log-probs of policy and reference."),
        Metric("time/update", "seconds", "Updates of the weights."),
        Metric("time/sync", "seconds", "Handing the weights to the rollout engine."),
        Metric("time/ahead_generate", "seconds", "Sampling of the next step's batch."),
        Metric("time/ahead_score", "seconds", "Scoring of the next step's batch."),
        Metric("tokens_per_second", "tokens/s", "Completion tokens of a whole step."),
        Metric("total/tokens", "tokens", "Sampled since the run began."),
        Metric("total/completions", "completions", "Sampled since the run began."),
    ),
}


def find_metric(name: str) -> Metric | None:
    """The exact name before one with a place for names."""
    found = [one for group in METRICS.values() for one in group if one.matches(name)]
    return min(found, key=lambda one: "<" in one.name, default=None)
