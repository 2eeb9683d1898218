"""Costs of a run, and of the team by month, person and model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.api.auth import READ, ApiRequest
from dashboard.api.schemas import Id
from dashboard.costs.reports import By, read_run_cost, read_team_costs
from dashboard.runs.queries import get_run

router = Router(tags=["Costs"], auth=READ)
runs_router = Router(tags=["Costs"], auth=READ)
COSTS = Field(
    description="By currency; never added. Without what has no price.",
    examples=[{"EUR": 20.638}],
)


class BillOut(Schema):
    costs: dict[str, float] = COSTS
    gpu_hours: float = Field(examples=[8.0])
    worker_hours: float = Field(description="Of workers without a GPU.")
    amounts: dict[str, float] = Field(
        description="Calls and tokens of judges. Those of calls_without_usage are "
        "unknown.",
        examples=[{"calls": 1000, "input_tokens": 1_200_000}],
    )
    unpriced: dict[str, float] = Field(
        description="What has no price, by unit.", examples=[{"gpu_hour": 3.0}]
    )


class CostLineOut(BillOut):
    kind: str = Field(description="attempt, server or judge", examples=["attempt"])
    label: str = Field(description="The attempt's number, the server, or the rule.")
    item: str = Field(description="Hardware, or the judge's model.")


class RunCostOut(BillOut):
    lines: list[CostLineOut]
    best_step: int | None = Field(description="Of the best checkpoint.")
    until_best: dict[str, float] = COSTS
    after_best: dict[str, float] = COSTS


class TeamCostOut(BillOut):
    key: str = Field(description="The month, person or model.", examples=["2026-11"])
    num_runs: int


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
            TeamCostOut(key=r.key, num_runs=r.num_runs, **asdict(r.bill)) for r in rows
        ],
    )


@runs_router.get("/{run_id}/cost", response=RunCostOut, summary="Get a run's cost")
def run_cost(request: ApiRequest, run_id: Id) -> RunCostOut:
    """Return costs of its attempts, servers and judges, at today's prices."""
    cost = read_run_cost(get_run(request.auth.team, run_id))
    return RunCostOut(
        **asdict(cost.bill),
        lines=[
            CostLineOut(
                kind=line.kind,
                label=line.label,
                item=line.item,
                **asdict(line.bill),
            )
            for line in cost.lines
        ],
        best_step=cost.best_step,
        until_best=cost.until_best,
        after_best=cost.after_best,
    )
