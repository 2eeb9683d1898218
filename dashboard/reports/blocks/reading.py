"""What a block shows, as plain data: the same to draw live, and to keep when pinned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dashboard.accounts.models import Team
from dashboard.reports.block_lines import Block
from dashboard.reports.blocks.chart import read_chart
from dashboard.reports.blocks.comparison import read_comparison
from dashboard.reports.blocks.group import read_group
from dashboard.reports.blocks.options import read_options
from dashboard.reports.blocks.table import read_table

READERS: dict[str, Callable[[Team, dict[str, Any]], dict[str, Any]]] = {
    "chart": read_chart,
    "group": read_group,
    "compare": read_comparison,
    "table": read_table,
}


def read_data(team: Team, block: Block) -> dict[str, Any]:
    """A ValueError says what is wrong with the block's options."""
    options = read_options(block)
    return READERS[block.kind](team, options)


def has_content(data: dict[str, Any]) -> bool:
    """False where all that the block names is gone."""
    return any(data.get(name) for name in ("lines", "runs", "completions"))
