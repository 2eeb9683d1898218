"""Costs of the team by month, person and model."""

from __future__ import annotations

from typing import Annotated

from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.api.auth import READ, ApiRequest
from dashboard.costs.reports import By, read_team_costs

router = Router(tags=["Costs"], auth=READ)


class TeamCostOut(Schema):
    key: str = Field(description="The month, person or model.", examples=["2026-11"])
    num_runs: int
    costs: dict[str, float] = Field(
        description="By currency; never added. Without what has no price.",
        examples=[{"EUR": 20.638}],
    )
    gpu_hours: float = Field(examples=[8.0])
    worker_hours: float = Field(
        description="Of workers without a GPU, and servers with unknown GPUs."
    )
    amounts: dict[str, float] = Field(
        description="Calls and tokens of judges. Those of calls_without_usage are "
        "unknown.",
        examples=[{"calls": 1000, "input_tokens": 1_200_000}],
    )
    unpriced: dict[str, float] = Field(
        description="What has no price, by unit.", examples=[{"gpu_hour": 3.0}]
    )


class TeamCostsOut(Schema):
    by: By
    items: list[TeamCostOut]


@router.get("", response=TeamCostsOut, summary="List the team's costs")
def costs(
    request: ApiRequest,
    by: Annotated[By, Query("month", description="What the rows stand for.")],
) -> TeamCostsOut:
    """Return costs of all runs, tests, rescorings and questions, at today's prices."""
    rows = read_team_costs(request.auth.team, by)
    return TeamCostsOut(
        by=by,
        items=[
            TeamCostOut(key=row.key, num_runs=len(row.runs), **vars(row.bill))
            for row in rows
        ],
    )
