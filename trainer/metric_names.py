"""What a run measures: each metric's name, title, unit, meaning and better direction.

A part in angle brackets stands for a name: `reward/<rule>/mean`. Pages, API,
reports and help describe a metric by this list, and one that isn't in it by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Literal

Better = Literal["higher", "lower"]
SHOWN = ("nats per token", "tokens", "seconds", "tokens/s", "updates")  # beside a title
MAX_METRICS = 2_000  # different names, of one run
MAX_OWN_METRICS = 1_000  # of them those that reward functions name
MAIN_SET = "heldout"  # the rows that a run holds out of its own dataset


@dataclass(frozen=True, slots=True)
class Metric:
    """Attributes: better: the direction of improvement; None where it depends, as for
    KL, entropy, loss, norms and lengths. has_interval: <name>/low and <name>/high are
    its 95% confidence interval.
    """

    name: str
    title: str
    unit: str
    about: str  # Markdown
    better: Better | None = None
    has_interval: bool = False

    def parts_of(self, name: str) -> dict[str, str] | None:
        """Give what stands in the places in angle brackets; None for another metric."""
        if not name.startswith(self.name.partition("<")[0]):
            return None  # a run may have thousands of names
        places = re.split(r"<(\w+)>", self.name)
        pattern = "".join(
            f"(?P<{part}>[^/]+)" if i % 2 else re.escape(part)
            for i, part in enumerate(places)
        )
        bound = "(/low|/high)?" if self.has_interval else ""
        match = re.fullmatch(pattern + bound, name)
        return match.groupdict() if match else None

    def matches(self, name: str) -> bool:
        return self.parts_of(name) is not None


METRICS: dict[str, tuple[Metric, ...]] = {
    "Reward": (
        Metric(
            "reward/mean",
            "Reward (mean)",
            "reward",
            "Mean reward of the step's completions.",
            better="higher",
        ),
        Metric(
            "reward/std",
            "Reward (standard deviation)",
            "reward",
            "Standard deviation over all completions.",
        ),
        Metric(
            "reward/p10",
            "Reward (10th percentile)",
            "reward",
            "A tenth of the step's completions has a lower reward.",
        ),
        Metric(
            "reward/p90",
            "Reward (90th percentile)",
            "reward",
            "A tenth of the step's completions has a higher reward.",
        ),
        Metric(
            "reward/<rule>/mean",
            "Score of <rule>",
            "score",
            "Mean score of a rule, before weights.",
            better="higher",
        ),
        Metric(
            "reward/<rule>/<key>/mean",
            "<key> of <rule>",
            "value",
            "Mean of a number that a Python function returns beside its score.",
        ),
        Metric(
            "reward/<rule>/weight",
            "Weight of <rule>",
            "weight",
            "Weight of a rule with a schedule.",
        ),
        Metric(
            "reward/overlong/mean",
            "Length penalty",
            "reward",
            "Mean penalty for length.",
            better="higher",
        ),
        Metric(
            "advantage/abs_mean",
            "Advantage (mean abs)",
            "advantage",
            "Mean absolute advantage.",
        ),
    ),
    "Signal within groups": (
        Metric(
            "group/std_mean",
            "Reward spread within groups",
            "reward",
            "Mean of the groups' standard deviations.",
        ),
        Metric(
            "group/frac_zero_std",
            "Groups with equal rewards",
            "share",
            "Groups whose rewards are all equal.",
            better="lower",
        ),
        Metric(
            "group/frac_all_max",
            "All-correct groups",
            "share",
            "Groups with equal rewards whose completions are all correct.",
        ),
        Metric(
            "group/frac_all_min",
            "All-wrong groups",
            "share",
            "Groups with the lowest reward only, not correct.",
            better="lower",
        ),
        Metric(
            "group/frac_tied",
            "Tied groups",
            "share",
            "Groups with another equal reward.",
        ),
        Metric(
            "group/frac_unscorable",
            "Unscored groups",
            "share",
            "Groups that no rule could score.",
        ),
        Metric(
            "group/num_effective",
            "Groups with signal",
            "groups",
            "Groups whose rewards differ.",
            better="higher",
        ),
    ),
    "Curriculum": (
        Metric(
            "curriculum/unseen",
            "Prompts drawn, unseen",
            "share",
            "The step's prompts without a pass rate.",
        ),
        Metric(
            "curriculum/hard",
            "Prompts drawn, hard",
            "share",
            "The step's prompts of the hard pool.",
        ),
        Metric(
            "curriculum/normal",
            "Prompts drawn, normal",
            "share",
            "The step's prompts of the normal pool.",
        ),
        Metric(
            "curriculum/easy",
            "Prompts drawn, easy",
            "share",
            "The step's prompts of the easy pool.",
        ),
        Metric(
            "curriculum/num_out",
            "Prompts out",
            "prompts",
            "Prompts that the gate left out.",
        ),
        Metric(
            "curriculum/uniform_signal",
            "Groups with signal in uniform order",
            "share",
            "Estimate from the drawn groups; a step's may lie outside 0 to 1.",
        ),
    ),
    "Dynamic sampling": (
        Metric(
            "sampling/frac_dropped",
            "Dropped groups",
            "share",
            "Groups left out of the batch.",
            better="lower",
        ),
        Metric(
            "sampling/num_dropped",
            "Dropped groups (count)",
            "groups",
            "Groups left out of the batch.",
        ),
        Metric(
            "sampling/num_rounds",
            "Sampling rounds",
            "rounds",
            "Rounds of sampling.",
        ),
        Metric(
            "sampling/num_completions",
            "Completions sampled in the step",
            "completions",
            "Sampled in all rounds.",
        ),
        Metric(
            "sampling/num_tokens",
            "Tokens sampled in the step",
            "tokens",
            "Sampled in all rounds.",
        ),
        Metric(
            "sampling/without_signal",
            "Steps without signal",
            "0 or 1",
            "1: no group has a signal.",
        ),
    ),
    "Policy": (
        Metric(
            "kl/mean",
            "KL to reference",
            "nats per token",
            "KL between policy and reference, mean over tokens. With a KL weight of 0: "
            "to the initial model, over a token sample.",
        ),
        Metric(
            "kl/sampled_tokens",
            "KL sample size",
            "tokens",
            "Tokens that `kl/mean` averages.",
        ),
        Metric(
            "kl/p99",
            "KL to reference (99th percentile)",
            "nats per token",
            "99th percentile over tokens.",
        ),
        Metric(
            "kl/max",
            "KL to reference (max)",
            "nats per token",
            "Largest KL of a token.",
        ),
        Metric("kl/coef", "KL weight", "weight", "KL weight set by the KL controller."),
        Metric(
            "distill/kl",
            "Distance to teacher",
            "nats per token",
            "Log-probs of the policy minus the teacher's, mean over tokens.",
            better="lower",
        ),
        Metric(
            "distill/agreement",
            "Agreement with teacher",
            "share",
            "Tokens at least as probable for the teacher as for the policy.",
            better="higher",
        ),
        Metric(
            "entropy",
            "Entropy",
            "nats per token",
            "Entropy of the policy's next token.",
        ),
        Metric(
            "entropy/coef",
            "Entropy weight",
            "weight",
            "Entropy weight set by the entropy controller.",
        ),
        Metric(
            "entropy/frac_kept",
            "Tokens kept by entropy control",
            "share",
            "Tokens with a policy loss, by entropy and covariance.",
        ),
        Metric(
            "ratio/mean",
            "Policy ratio (mean)",
            "ratio",
            "Mean of the tokens' probability ratios, new policy to old.",
        ),
        Metric("ratio/max", "Policy ratio (max)", "ratio", "Largest ratio of a token."),
        Metric("clip/frac", "Clipped tokens", "share", "Tokens clipped at any bound."),
        Metric(
            "clip/frac_low",
            "Tokens clipped below",
            "share",
            "Tokens clipped at the lower bound.",
        ),
        Metric(
            "clip/frac_high",
            "Tokens clipped above",
            "share",
            "Tokens clipped at the upper bound.",
        ),
        Metric(
            "clip/frac_dual",
            "Dual-clipped tokens",
            "share",
            "Tokens capped by dual clip.",
        ),
    ),
    "Optimization": (
        Metric("loss", "Loss", "loss", "Mean loss of the step's updates."),
        Metric("grad_norm", "Gradient norm", "norm", "Gradient norm before clipping."),
        Metric("lr", "Learning rate", "rate", "Learning rate."),
    ),
    "Completions": (
        Metric(
            "completion/mean_length",
            "Completion length (mean)",
            "tokens",
            "Mean length.",
        ),
        Metric(
            "completion/max_length",
            "Completion length (max)",
            "tokens",
            "Longest completion.",
        ),
        Metric(
            "completion/frac_truncated",
            "Truncated completions",
            "share",
            "Cut at the length limit.",
            better="lower",
        ),
    ),
    "Episodes": (
        Metric("episode/num_turns", "Turns", "turns", "Turns of the policy, mean."),
        Metric(
            "reward/turn<number>",
            "Reward of turn <number>",
            "reward",
            "Mean reward that the environment gives this turn of the policy.",
            better="higher",
        ),
        Metric(
            "episode/num_tool_calls",
            "Tool calls",
            "calls",
            "Calls of tools in an episode, mean.",
        ),
        Metric(
            "episode/frac_tool_errors",
            "Failed tool calls",
            "share",
            "Calls without a result: malformed, or the tool failed.",
            better="lower",
        ),
        Metric(
            "episode/frac_failed",
            "Failed episodes",
            "share",
            "The environment failed or took too long; there is no score.",
            better="lower",
        ),
        Metric(
            "episode/frac_rewritten",
            "Rewritten episodes",
            "share",
            "Failed, as their taskset changed the conversation so far.",
            better="lower",
        ),
        Metric(
            "episode/frac_out_of_turns",
            "Episodes out of turns",
            "share",
            "Ended by environment.max_turns.",
            better="lower",
        ),
        Metric(
            "episode/reply_tokens",
            "Environment tokens",
            "tokens",
            "Tokens of an episode that the environment wrote, mean.",
        ),
    ),
    "Off-policy": (
        Metric(
            "staleness/mean",
            "Staleness",
            "updates",
            "Updates between sampling and training, mean over the batch.",
        ),
        Metric(
            "staleness/kl",
            "KL since sampling",
            "nats per token",
            "KL from the sampling policy to the current one, with one_step_off.",
        ),
        Metric(
            "mismatch/mean",
            "Sampler mismatch (mean)",
            "nats per token",
            "Mean absolute difference of the rollout engine's log-probs and the "
            "trainer's.",
            better="lower",
        ),
        Metric(
            "mismatch/max",
            "Sampler mismatch (max)",
            "nats per token",
            "Max log-prob difference.",
            better="lower",
        ),
        Metric(
            "mismatch/kl",
            "KL from sampler to trainer",
            "nats per token",
            "KL from the engine to the trainer.",
            better="lower",
        ),
        Metric(
            "importance/mean",
            "Importance weight (mean)",
            "weight",
            "Mean importance weight of tokens.",
        ),
        Metric(
            "importance/frac_masked",
            "Tokens masked by the correction",
            "share",
            "Tokens that the correction masks.",
        ),
        Metric(
            "importance/frac_sequences_masked",
            "Completions masked by the correction",
            "share",
            "Completions that the correction masks wholly.",
        ),
        Metric(
            "importance/ess",
            "Effective tokens",
            "share",
            "Share of equally weighted tokens that would estimate as well as the "
            "weighted ones: (Σw)²/(n·Σw²).",
        ),
        Metric(
            "importance/ess_sequence",
            "Effective completions",
            "share",
            "The same share of completions, each with the mean weight of its tokens.",
        ),
    ),
    "Held-out prompts": (
        Metric(
            "eval/<set>/mean",
            "Held-out reward",
            "reward",
            "Mean reward over prompts.",
            has_interval=True,
            better="higher",
        ),
        Metric(
            "eval/<set>/pass@<k>",
            "Held-out pass@<k>",
            "share",
            "Chance that at least one of k completions is correct.",
            has_interval=True,
            better="higher",
        ),
        Metric(
            "eval/<set>/maj@<k>",
            "Held-out maj@<k>",
            "share",
            "Prompts whose majority answer of k is correct.",
            has_interval=True,
            better="higher",
        ),
        Metric(
            "eval/<set>/rule/<rule>",
            "Held-out score of <rule>",
            "score",
            "Mean score of one of several rules, before weights.",
            better="higher",
        ),
        Metric(
            "eval/<set>/mean_length",
            "Held-out completion length",
            "tokens",
            "Mean length of completions.",
        ),
        Metric(
            "eval/<set>/frac_truncated",
            "Held-out truncated completions",
            "share",
            "Cut at the length limit.",
            better="lower",
        ),
    ),
    "Judges": (
        Metric(
            "judge/<rule>/calls",
            "Calls of <rule>",
            "calls",
            "Requests that the judge of a rule answered.",
        ),
        Metric(
            "judge/<rule>/calls_without_usage",
            "Calls of <rule> without usage",
            "calls",
            "Answers that do not tell their tokens, which are unknown.",
        ),
        Metric(
            "judge/<rule>/from_file",
            "Reused answers of <rule>",
            "answers",
            "Answers taken from the run's file, or of an equal question.",
        ),
        Metric(
            "judge/<rule>/input_tokens",
            "Input tokens of <rule>",
            "tokens",
            "Prompt tokens that the judge's endpoint did not have in its cache.",
        ),
        Metric(
            "judge/<rule>/cached_tokens",
            "Cached tokens of <rule>",
            "tokens",
            "Prompt tokens that the judge's endpoint had in its cache.",
        ),
        Metric(
            "judge/<rule>/output_tokens",
            "Output tokens of <rule>",
            "tokens",
            "Tokens of the judge's answers.",
        ),
        Metric(
            "eval/<set>/judge/<rule>/<count>",
            "Held-out <count> of <rule>",
            "calls",
            "The same calls and tokens, of a held-out evaluation.",
        ),
    ),
    "Servers": (
        Metric(
            "server/<server>/<hardware>/gpu_hours",
            "GPU-hours of the <server> server, <hardware>",
            "GPU-hours",
            "Time that the run held the server, times its GPUs; of a shared server the "
            "run's share of the requests.",
        ),
        Metric(
            "server/<server>/<hardware>/hours",
            "Hours of the <server> server, <hardware>",
            "hours",
            "The same time of a server whose number of GPUs is not known.",
        ),
    ),
    "Time": (
        Metric(
            "time/step",
            "Step time",
            "seconds",
            "A step, from sampling to the update.",
            better="lower",
        ),
        Metric(
            "time/generate",
            "Sampling time",
            "seconds",
            "Sampling; with one_step_off, the wait for a batch.",
            better="lower",
        ),
        Metric(
            "time/score",
            "Scoring time",
            "seconds",
            "Scoring after sampling has ended.",
            better="lower",
        ),
        Metric(
            "time/score_work",
            "Scoring time of all processes",
            "seconds",
            "Scoring, summed over processes.",
            better="lower",
        ),
        Metric(
            "time/environment",
            "Environment time",
            "seconds",
            "Replies of environments and tools, summed over episodes.",
            better="lower",
        ),
        Metric(
            "time/environment_idle",
            "Wait for environments",
            "seconds",
            "The sampler waited for replies.",
            better="lower",
        ),
        Metric(
            "time/environment_share",
            "Wait for environments (share)",
            "share",
            "Part of the sampling time in which the sampler waited for replies.",
            better="lower",
        ),
        Metric(
            "time/logprobs",
            "Log-prob time",
            "seconds",
            "Log-probs of policy and reference.",
            better="lower",
        ),
        Metric(
            "time/reference",
            "Reference time",
            "seconds",
            "Log-probs of the reference alone, a part of `time/logprobs`.",
            better="lower",
        ),
        Metric(
            "time/update",
            "Update time",
            "seconds",
            "Updates of the weights.",
            better="lower",
        ),
        Metric(
            "time/sync",
            "Weight sync time",
            "seconds",
            "Syncing weights to the rollout engine.",
            better="lower",
        ),
        Metric(
            "time/ahead_generate",
            "Next-step sampling",
            "seconds",
            "Sampling of the next step's batch.",
            better="lower",
        ),
        Metric(
            "time/ahead_score",
            "Next-step scoring",
            "seconds",
            "Scoring of the next step's batch.",
            better="lower",
        ),
        Metric(
            "tokens_per_second",
            "Throughput",
            "tokens/s",
            "Completion tokens / step time.",
            better="higher",
        ),
        Metric(
            "total/tokens", "Tokens sampled", "tokens", "Sampled since the run began."
        ),
        Metric(
            "total/completions",
            "Completions sampled",
            "completions",
            "Sampled since the run began.",
        ),
    ),
}


def keep_first(
    metrics: Mapping[str, float | None], names: set[str], *, limit: int
) -> dict[str, float | None]:
    """Return the metrics with one of a run's first names, which `names` collects."""
    for name in metrics:
        if len(names) >= limit:
            return {name: value for name, value in metrics.items() if name in names}
        names.add(name)
    return dict(metrics)


OTHER = "Other metrics"  # of an external trainer, without a family


@lru_cache(maxsize=4_096)
def find_metric(name: str) -> Metric | None:
    """Return the exact name before one with a place for names."""
    matches = [
        metric for group in METRICS.values() for metric in group if metric.matches(name)
    ]
    return min(matches, key=lambda metric: "<" in metric.name, default=None)


def group_of(name: str) -> str:
    """Give its group in the registry, or the family of another metric: `x` of `x/y`."""
    metric = find_metric(name)
    if metric is None:
        family, slash, _ = name.partition("/")
        return family if slash else OTHER
    return next(title for title, group in METRICS.items() if metric in group)


@lru_cache(maxsize=4_096)
def rank_of(name: str) -> tuple[int, str, str]:
    """Give a sort key: the registry's order, then other metrics by family and name."""
    metric = find_metric(name)
    listed = [metric for group in METRICS.values() for metric in group]
    rank = listed.index(metric) if metric else len(listed)
    return rank, group_of(name), name


def group_names(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    ordered = sorted(names, key=rank_of)
    return [(group, list(names)) for group, names in groupby(ordered, key=group_of)]


def title_of(name: str, *, with_unit: bool = False) -> str:
    """Return the metric in words; the name itself where it is not in the registry.

    >>> title_of("kl/mean", with_unit=True), title_of("reward/format/mean")
    ('KL to reference (nats per token)', 'Score of format')
    >>> title_of("eval/heldout/pass@8"), title_of("eval/math/pass@8")
    ('Held-out pass@8', 'math: pass@8')
    """
    metric = find_metric(name)
    if metric is None:
        return name
    parts = metric.parts_of(name) or {}
    title = metric.title
    for part, value in parts.items():
        title = title.replace(f"<{part}>", value)
    if parts.get("set", MAIN_SET) != MAIN_SET:
        title = f"{parts['set']}: {title.removeprefix('Held-out ')}"
    if name.endswith(("/low", "/high")):
        title += f" ({'lower' if name.endswith('/low') else 'upper'} bound)"
    return _with_unit(title, metric) if with_unit else title


def _with_unit(title: str, metric: Metric) -> str:
    return f"{title} ({metric.unit})" if metric.unit in SHOWN else title


def list_titles() -> list[tuple[str, str, str, str]]:
    """Name, title, group and unit of each metric of the registry, for the browser."""
    return [
        (
            metric.name,
            _with_unit(metric.title, metric),
            group,
            metric.unit if metric.unit in SHOWN else "",
        )
        for group, metrics in METRICS.items()
        for metric in metrics
    ]


def better_of(name: str) -> Better | None:
    """Return whether the higher or the lower value of a metric is the better one, if
    either.

    >>> better_of("reward/mean"), better_of("time/step"), better_of("entropy")
    ('higher', 'lower', None)
    """
    metric = find_metric(name)
    return metric.better if metric else None
