"""Which charts a run's pages have: by its settings, or by what was imported."""

from __future__ import annotations

from dataclasses import replace

from dashboard.runs.charts.figures import (
    Section,
    metrics_of,
    overview_sections,
    sections_by_traits,
    shown_by_traits,
    shown_metrics,
)
from dashboard.runs.charts.traits import Traits
from dashboard.runs.models import Run
from trainer.config import RunConfig


def settings_of(run: Run) -> RunConfig | None:
    """None: it was imported, and nobody knows them."""
    return None if run.is_imported else RunConfig.model_validate(run.config)


def sections_of(run: Run) -> list[Section]:
    """Of an imported run only charts that have values, and no notes on settings."""
    config = settings_of(run)
    if config is not None:
        return overview_sections(config)
    known = set(run.metric_names)
    sections = [
        replace(
            section,
            charts=[chart for chart in section.charts if known & metrics_of(chart)],
            notes=[],
        )
        for section in sections_by_traits(_traits(run))
    ]
    return [section for section in sections if section.charts]


def metrics_shown(run: Run) -> frozenset[str]:
    """What its page needs before anybody asks for more."""
    config = settings_of(run)
    return shown_metrics(config) if config else shown_by_traits(_traits(run))


def _traits(run: Run) -> Traits:
    rules = run.config["reward"]["recipe"]["rules"]
    return Traits(
        rules=tuple(rule["name"] for rule in rules),
        scheduled=(),
        eval_sets=(),
        has_reference=True,
        samples_kl=False,
        has_dual_clip=False,
        has_penalty=False,
        samples_again=False,
        is_stale=False,
    )
