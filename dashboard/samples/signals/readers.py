"""The signal charts of a run, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dashboard.runs.models import Run
from dashboard.samples.signals.anatomy import read_anatomy
from dashboard.samples.signals.distributions import read_distribution
from dashboard.samples.signals.form import SignalForm
from dashboard.samples.signals.passes import read_passes
from dashboard.samples.signals.rule_shares import read_rule_shares
from dashboard.samples.signals.signal_map import read_map

Read = Callable[[Run, SignalForm], dict[str, Any]]
READERS: dict[str, Read] = {
    "map": lambda run, form: read_map(run, order=form.value("rows"), **form.steps),
    "rewards": lambda run, form: read_distribution(run, "reward", **form.steps),
    "advantages": lambda run, form: read_distribution(run, "advantage", **form.steps),
    "rules": lambda run, form: read_rule_shares(run, **form.steps),
    "passes": lambda run, form: read_passes(run, **form.steps),
    "anatomy": lambda run, form: read_anatomy(run, **form.steps),
}
