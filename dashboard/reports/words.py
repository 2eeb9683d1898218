"""What a block is called and how new it is, the same on pages and in files."""

from __future__ import annotations

from datetime import UTC, datetime

from dashboard.reports.document import Shown


def name_block(shown: Shown) -> str:
    data, kind = shown.data, shown.block.kind
    if kind == "chart" and "metric" in data:
        return str(data["metric"])
    if kind == "group" and "run" in data:
        at = f"Prompt {data['prompt_index']} at step {data['step']:,}"
        return f"{at} of {data['run']['name']}"
    if kind == "compare" and "runs" in data:
        return _count(len(data["runs"]), "run") + " compared"
    if kind == "table" and "runs" in data:
        return f"Figures of {_count(len(data['runs']), 'run')}"
    return {"chart": "Chart", "group": "Group", "compare": "Comparison"}.get(
        kind, "Table"
    )


def describe_block(shown: Shown) -> str:
    """Live or pinned, and since when."""
    return f"Pinned {written(shown.pin.pinned_at)}" if shown.pin else "Live"


def describe_newest(shown: Shown) -> str:
    """As of which step; empty where the block is of one step alone."""
    newest = shown.data.get("newest_step")
    return "" if newest is None else f"newest step {newest:,}"


def written(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
