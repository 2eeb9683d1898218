"""What the chart of evaluations draws on its one axis."""

from __future__ import annotations

import re

import pytest

from dashboard.runs.charts.figures import overview_sections
from trainer.config import RunConfig

CONFIG = RunConfig.model_validate(
    {
        "model": {"path": "model"},
        "data": {"rows": "rows.jsonl"},
        "reward": {"recipe": {"rules": [{"name": "exact", "kind": "exact_answer"}]}},
    }
)


def _family() -> str:
    charts = [
        chart for section in overview_sections(CONFIG) for chart in section.charts
    ]
    figure = next(chart.figure for chart in charts if chart.title == "eval/heldout/…")
    family: str = figure["data"][0]["meta"]["each"]
    return family


@pytest.mark.parametrize("metric", ["mean", "pass@1", "pass@16", "maj@4"])
def test_scores_of_any_set_are_drawn(metric: str) -> None:
    assert re.search(_family(), f"eval/heldout/{metric}")


@pytest.mark.parametrize("metric", ["mean_length", "frac_truncated"])
def test_lengths_and_cut_shares_are_not(metric: str) -> None:
    assert not re.search(_family(), f"eval/heldout/{metric}")
