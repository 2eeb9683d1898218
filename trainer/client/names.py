"""TRL's and verl's names of metrics, as Cohort calls the same quantity.

Only what means the same is renamed. TRL's `reward_std` is not: by version it is the
deviation over the batch or within groups; nor verl's `actor/pg_loss`, which is a part
of the loss, and `perf/throughput`, which counts prompt tokens, for each GPU.
"""

from __future__ import annotations

import re

_TRL = {
    "reward": "reward/mean",
    "frac_reward_zero_std": "group/frac_zero_std",
    "kl": "kl/mean",
    "learning_rate": "lr",
    "completions/mean_length": "completion/mean_length",
    "completions/max_length": "completion/max_length",
    "completions/clipped_ratio": "completion/frac_truncated",
    "completion_length": "completion/mean_length",
    "clip_ratio/low_mean": "clip/frac_low",
    "clip_ratio/high_mean": "clip/frac_high",
    "step_time": "time/step",
}
_VERL = {
    "critic/score/mean": "reward/mean",
    "actor/entropy": "entropy",
    "actor/entropy_loss": "entropy",
    "actor/grad_norm": "grad_norm",
    "actor/lr": "lr",
    "actor/kl_loss": "kl/mean",
    "response_length/mean": "completion/mean_length",
    "response_length/max": "completion/max_length",
    "response_length/clip_ratio": "completion/frac_truncated",
    "timing_s/gen": "time/generate",
    "timing_s/reward": "time/score",
    "timing_s/old_log_prob": "time/logprobs",
    "timing_s/update_actor": "time/update",
    "timing_s/step": "time/step",
}
_TRL_RULE = re.compile(r"rewards/(.+)/mean")


def metric_name(name: str) -> str:
    """As Cohort calls it; itself where that is not known. TRL's are in "train/"."""
    if name in _VERL:
        return _VERL[name]
    own = name.removeprefix("train/")
    if own in _TRL:
        return _TRL[own]
    if rule := _TRL_RULE.fullmatch(own):
        return f"reward/{rule_name(rule[1])}/mean"
    return own


def rule_name(column: str) -> str:
    """As long as a rule's name may be."""
    return column[:40]
