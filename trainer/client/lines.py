"""What a trainer tells as lines of the event log, one JSON object each.

Their line and attempt are put in front when they are sent: a server that cannot
be reached has given no attempt yet. TRL's and verl's metrics are told under Cohort's
names.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

# Only what means the same is renamed. TRL's `reward_std` is not: by version it is the
# deviation over the batch or within groups; nor verl's `actor/pg_loss`, which is a part
# of the loss, and `perf/throughput`, which counts prompt tokens, for each GPU.
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


# A server takes 16 MiB; what is longer is cut here, as it would be left out there.
MAX_LINE_BYTES = 15 * 2**20
MAX_TEXT = 200_000  # characters of one completion


def encode(tree: Mapping[str, Any]) -> bytes:
    """One line, its end included. Numbers that are not finite are null."""
    text = json.dumps(plain(tree), ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate, which a decoder may leave, has no place in UTF-8.
    line = text.encode("utf-8", "replace")
    if len(line) > MAX_LINE_BYTES:
        return encode(left_out(tree, len(line)))
    return line + b"\n"


def left_out(tree: Mapping[str, Any], num_bytes: int) -> dict[str, Any]:
    """A warning in place of what is longer than the server, or a proxy, takes."""
    return {
        "type": "warned",
        "time": tree["time"],
        "step": tree["step"],
        "code": "line_too_long",
        "message": f"What was told of step {tree['step']} ({tree['type']}) takes "
        f"{num_bytes:,} bytes, more than can be sent, so it was left out.",
    }


def place(line: bytes, *, number: int, attempt: int) -> bytes:
    """With its place in the log, as the server wants it."""
    return b'{"line":%d,"attempt":%d,' % (number, attempt) + line.lstrip(b"{")


def plain(value: Any) -> Any:
    """As JSON has it; whatever is no JSON, such as a number of NumPy's, as a number."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    try:
        return plain(float(value))
    except (TypeError, ValueError):
        return str(value)


def number(value: Any) -> float | None:
    """None: there is none, or it is not finite."""
    if value is None:
        return None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """One completion of a prompt; None: the trainer does not tell."""

    text: str
    reward: float | None = None
    rules: Mapping[str, float | None] = field(default_factory=dict)
    advantage: float | None = None
    num_tokens: int | None = None
    is_truncated: bool | None = None


def answer_of(value: Any) -> str | None:
    """A dataset's answer as text; what is no text as JSON."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def text_of(messages: Any) -> str:
    """A prompt or completion as text: messages under their roles, of one its content.

    >>> text_of([{"role": "user", "content": "1 + 1?"}])
    '1 + 1?'
    """
    if isinstance(messages, str):
        return messages
    if not isinstance(messages, list | tuple) or not messages:
        return "" if not messages else str(messages)
    values = [_said(one) for one in messages]
    if len(values) == 1:
        return values[0][1]
    return "\n\n".join(f"{role}: {content}" for role, content in values)


def _said(message: Any) -> tuple[str, str]:
    if not isinstance(message, Mapping):
        return "", str(message)
    content = message.get("content")
    if isinstance(content, list):  # parts: texts, images, …
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        content = "".join(text for text in texts if isinstance(text, str))
    calls = message.get("tool_calls")
    explanation = "" if content is None else str(content)
    return str(
        message.get("role", "")
    ), f"{explanation}{calls}" if calls else explanation


def group_tree(
    prompt: str,
    prompt_index: int,
    completions: Sequence[Completion],
    *,
    answer: str | None,
    right_from: float | None,
    lowest: float | None,
) -> dict[str, Any]:
    """`lowest` is the lowest reward that the run has had."""
    rewards = [number(one.reward) for one in completions]
    scored = [reward for reward in rewards if reward is not None]
    return {
        "type": "group_scored",
        "prompt_index": prompt_index,
        "prompt": prompt[:MAX_TEXT],
        "answer": answer,
        "reward_mean": mean(scored),
        "reward_std": std(scored),
        "signal": signal_of(scored, right_from=right_from, lowest=lowest),
        "completions": [_tree(one) for one in completions],
    }


def _tree(one: Completion) -> dict[str, Any]:
    ends = {None: "unknown", True: "length", False: "stop"}
    return {
        "text": one.text[:MAX_TEXT],
        "num_tokens": one.num_tokens,
        "end_reason": ends[one.is_truncated],
        "reward": number(one.reward),
        "rules": {str(name)[:40]: number(s) for name, s in one.rules.items()},
        "advantage": number(one.advantage),
        "mean_logprob": None,
    }


def signal_of(
    scored: Sequence[float], *, right_from: float | None, lowest: float | None
) -> Literal["mixed", "all_right", "all_wrong", "tied", "unscorable"]:
    """What a group's rewards teach; `lowest` is the lowest reward of the run."""
    if not scored:
        return "unscorable"
    if min(scored) < max(scored):
        return "mixed"
    if right_from is None:
        return "tied"
    if scored[0] >= right_from:
        return "all_right"
    return "all_wrong" if scored[0] == lowest else "tied"


def metrics_of(groups: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Of a step's groups, by Cohort's names; lengths only where all are known."""
    found = [one for group in groups for one in group["completions"]]
    rewards = [one["reward"] for one in found if one["reward"] is not None]
    spreads = [g["reward_std"] for g in groups if g["reward_std"] is not None]
    count = Counter(group["signal"] for group in groups)
    num = len(groups)
    metrics = {
        "reward/mean": mean(rewards),
        "reward/std": std(rewards),
        "group/std_mean": mean(spreads),
        "group/frac_zero_std": 1 - count["mixed"] / num,
        "group/frac_all_max": count["all_right"] / num,
        "group/frac_all_min": count["all_wrong"] / num,
        "group/frac_tied": count["tied"] / num,
        "group/frac_unscorable": count["unscorable"] / num,
        "group/num_effective": float(count["mixed"]),
        "sampling/num_completions": float(len(found)),
    }
    for name in dict.fromkeys(name for one in found for name in one["rules"]):
        scores = [s for one in found if (s := one["rules"].get(name)) is not None]
        metrics[f"reward/{name}/mean"] = mean(scores)
    return metrics | _of_completions(found)


def _of_completions(found: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    metrics: dict[str, float | None] = {}
    advantages = [abs(a) for one in found if (a := one["advantage"]) is not None]
    if advantages:
        metrics["advantage/abs_mean"] = mean(advantages)
    lengths = [n for one in found if (n := one["num_tokens"]) is not None]
    if lengths and len(lengths) == len(found):
        metrics["completion/mean_length"] = mean(lengths)
        metrics["sampling/num_tokens"] = float(sum(lengths))
    ends = [one["end_reason"] for one in found]
    if ends and "unknown" not in ends:
        metrics["completion/frac_truncated"] = ends.count("length") / len(ends)
    return metrics


def mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def std(values: Sequence[float]) -> float | None:
    """Within the group, ddof 1; of equal values exactly 0."""
    if not values:
        return None
    return statistics.stdev(values) if len(values) > 1 else 0.0
