"""Runs side by side: their figures, and the settings in which they differ."""

from __future__ import annotations

from typing import Annotated

from django.http import HttpRequest, QueryDict
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.analysis.compare.differences import compare_settings
from dashboard.analysis.compare.selection import read_selection
from dashboard.analysis.compare.verdicts import compare_standings
from dashboard.api.auth import READ, access_of
from dashboard.api.problems import refuse_field
from dashboard.api.resources.run_schemas import RunOut
from dashboard.api.schemas import Real

router = Router(tags=["Compare"], auth=READ)
MAX_RUNS = 50


class FigureOut(Schema):
    title: str = Field(examples=["Best reward"])
    values: list[Real] = Field(description="One for each run, in order.")


class SettingOut(Schema):
    key: str = Field(examples=["optim.learning_rate"])
    values: list[str | None] = Field(
        description="One for each run, in order; null: it has no such setting.",
        examples=[["1e-6", "3e-6"]],
    )


class ComparisonOut(Schema):
    runs: list[RunOut]
    figures: list[FigureOut]
    settings: list[SettingOut] = Field(description="Those that differ.")


@router.get("", response=ComparisonOut, summary="Compare runs")
def compare(
    request: HttpRequest,
    runs: Annotated[
        str,
        Query(
            ...,
            min_length=1,
            max_length=2_000,
            description="Their numbers, with commas between; 50 at most.",
            examples=["7,8"],
        ),
    ],
) -> ComparisonOut:
    """Last and best reward, held-out scores, and the settings that differ.

    Values beyond ±1e37 are clipped to that.
    """
    query = QueryDict(mutable=True)
    query["runs"] = runs
    selection = read_selection(access_of(request).team, query, most=MAX_RUNS)
    if selection.is_cut or not selection.runs:
        raise refuse_field(
            "query.runs", f"Name 1 to {MAX_RUNS} runs; got {selection.num_chosen}."
        )
    chosen = selection.runs
    columns = compare_standings(chosen, [[place] for place in range(len(chosen))])
    return ComparisonOut(
        runs=[RunOut.of(run) for run in chosen],
        figures=[
            FigureOut(title=c.title, values=[f.value for f in c.figures])
            for c in columns
        ],
        settings=[
            SettingOut(key=setting.key, values=setting.values)
            for setting in compare_settings(chosen)
            if setting.differs
        ],
    )
