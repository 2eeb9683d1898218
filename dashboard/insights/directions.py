"""Whether more of a metric is better, less, or neither: what deltas are coloured by."""

from __future__ import annotations

import re
from typing import Any, Literal

Better = Literal["higher", "lower", "neither"]

DECLARED: tuple[tuple[str, Better], ...] = (
    (r"reward/mean", "higher"),
    (r"eval/[^/]+/(mean|(pass|maj)@\d+)", "higher"),
    (r"eval/[^/]+/frac_truncated", "lower"),
    (r"tokens_per_second", "higher"),
    (r"group/num_effective", "higher"),
    (r"group/(frac_zero_std|frac_all_min)", "lower"),
    (r"completion/frac_truncated", "lower"),
    (r"sampling/frac_dropped", "lower"),
    (r"mismatch/.+", "lower"),
    (r"time/.+", "lower"),
)
RULE = re.compile(r"reward/(?P<rule>[^/]+)/mean")


def declare(metric: str, config: dict[str, Any]) -> Better:
    """Of a rule's score by the sign of its weight in this run's recipe.

    Loss, KL, entropy, clipping, norms and lengths are neither: what is good depends.
    """
    if rule := RULE.fullmatch(metric):
        return _of_rule(rule["rule"], config)
    for pattern, better in DECLARED:
        if re.fullmatch(pattern, metric):
            return better
    return "neither"


def _of_rule(name: str, config: dict[str, Any]) -> Better:
    rules = config.get("reward", {}).get("recipe", {}).get("rules", [])
    weights = [rule.get("weight", 1.0) for rule in rules if rule.get("name") == name]
    return "lower" if weights and weights[0] < 0 else "higher"
