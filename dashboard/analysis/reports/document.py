"""A report for display: its text and its blocks with their data."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any

from cohort.lines import plain
from dashboard.accounts.models import Team
from dashboard.analysis.reports.block_options import Block, split_text
from dashboard.analysis.reports.blocks import has_content, read_data
from dashboard.analysis.reports.models import Pin, Report
from dashboard.runs.models import Run
from trainer.metric_names import title_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """A block with its data; live without a pin."""

    index: int  # among the report's blocks, from 0
    block: Block
    data: dict[str, Any]
    pin: Pin | None = None
    problem: str = ""
    known: frozenset[int] = frozenset()  # its runs that still exist

    @property
    def has_content(self) -> bool:
        return has_content(self.data)

    @property
    def is_going_on(self) -> bool:
        return self.pin is None and bool(self.data.get("is_going_on"))

    @property
    def deleted_runs(self) -> list[str]:
        """Names of runs that were deleted since the block was pinned."""
        return [
            name
            for pk, name in (runs_of(self.data) if self.pin else {}).items()
            if pk not in self.known
        ]


def show_report(report: Report) -> list[str | Shown]:
    """Text and blocks in turn; a query for the pins, one or more for each block."""
    return show_text(report.team, report, report.text)


def show_text(team: Team, report: Report | None, text: str) -> list[str | Shown]:
    """Show a text; with `report` None, of one that is not saved yet, so that has no
    pins.
    """
    parts = list(split_text(text))
    blocks = [part for part in parts if isinstance(part, Block)]
    pins = _find_pins(report, {block.pin for block in blocks if block.pin is not None})
    indices = count()
    return [
        part
        if isinstance(part, str)
        else _show_block(team, part, index=next(indices), pins=pins)
        for part in parts
    ]


def show_one(report: Report, block: Block, *, index: int) -> Shown:
    return _show_block(
        report.team,
        block,
        index=index,
        pins=_find_pins(report, {block.pin} if block.pin is not None else set()),
    )


def runs_of(data: dict[str, Any]) -> dict[int, str]:
    """Names by number."""
    return {
        run["id"]: run["name"]
        for run in [
            *data.get("lines", []),
            *data.get("runs", []),
            *([data["run"]] if "run" in data else []),
        ]
    }


def _find_pins(report: Report | None, numbers: set[int]) -> dict[int, Pin]:
    if report is None or not numbers:
        return {}
    return {
        pin.number: pin
        for pin in report.pins.filter(number__in=numbers).select_related("pinned_by")
    }


def _show_block(team: Team, block: Block, *, index: int, pins: dict[int, Pin]) -> Shown:
    if block.pin is not None and not block.problem:
        pin = pins.get(block.pin)
        if pin is not None:
            runs_known = frozenset(
                Run.objects.kept()
                .filter(team=team, pk__in=list(runs_of(pin.data)))
                .values_list("pk", flat=True)
            )
            return Shown(
                index=index, block=block, data=pin.data, pin=pin, known=runs_known
            )
        return Shown(
            index=index,
            block=block,
            data={},
            problem=f"This report has no pin {block.pin}. Replace pin={block.pin} with "
            "pin to pin the current data.",
        )
    try:
        data = plain(read_data(team, block))
    except ValueError as error:
        return Shown(index=index, block=block, data={}, problem=str(error))
    runs_known = frozenset(runs_of(data))
    return Shown(index=index, block=block, data=data, known=runs_known)


# Names and dates of blocks, the same on pages and in files.


def name_block(shown: Shown) -> str:
    data, kind = shown.data, shown.block.kind
    if kind == "chart" and "metric" in data:
        return title_of(str(data["metric"]))
    if kind == "group" and "run" in data:
        at = f"Prompt {data['prompt_index']} at step {data['step']:,}"
        return f"{at} of {data['run']['name']}"
    if kind == "compare" and "runs" in data:
        return _count(len(data["runs"]), "run") + " compared"
    if kind == "table" and "runs" in data:
        return f"Metrics of {_count(len(data['runs']), 'run')}"
    if kind == "mismatch" and "run" in data:
        return f"Sampler mismatch of {data['run']['name']} at step {data['step']:,}"
    titles = {"chart": "Chart", "group": "Group", "compare": "Comparison"}
    return {**titles, "mismatch": "Sampler mismatch"}.get(kind, "Table")


def describe_block(shown: Shown) -> str:
    """Live or pinned, and since when."""
    return f"Pinned {written(shown.pin.pinned_at)}" if shown.pin else "Live"


def describe_newest(shown: Shown) -> str:
    """Name the newest step; empty if the block shows only one step."""
    newest = shown.data.get("newest_step")
    return "" if newest is None else f"newest step {newest:,}"


def written(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
