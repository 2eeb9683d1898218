"""Whether more of a metric is better, less, or neither: what deltas are coloured by."""

from __future__ import annotations

import re
from typing import Any, Literal

from dashboard.runs.charts.chart import direction_of

Better = Literal["higher", "lower", "neither"]

RULE = re.compile(r"reward/(?P<rule>[^/]+)/mean")


def declare(metric: str, config: dict[str, Any]) -> Better:
    """As declared; of a rule's score by the sign of its weight in this run's recipe."""
    if rule := RULE.fullmatch(metric):
        return _of_rule(rule["rule"], config)
    return direction_of(metric) or "neither"


def _of_rule(name: str, config: dict[str, Any]) -> Better:
    rules = config.get("reward", {}).get("recipe", {}).get("rules", [])
    weights = [rule.get("weight", 1.0) for rule in rules if rule.get("name") == name]
    return "lower" if weights and weights[0] < 0 else "higher"
