"""Costs of a run in detail, of a team by month, person and model, and of what is to
come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from dashboard.accounts.models import Team
from dashboard.costs.ledger import (
    HOUR,
    Bill,
    Kind,
    Portion,
    charge_all,
    make_bill,
    read_bills,
    read_device,
    read_portions,
    read_prices,
    write_money,
)
from dashboard.costs.models import JudgeUse, Unit
from dashboard.runs.checkpoints.listing import list_checkpoints
from dashboard.runs.models import HELD, Run
from trainer.config import RunConfig
from trainer.rewards.model_judge.client import TOKENS, USAGE

MOST_STEPS = 5_000  # of a run whose tokens are read by step; of a longer one by day
MOST_RUNS = 200  # whose hardware and judges are offered for a price
By = Literal["month", "person", "model"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """An attempt, a server or a rule's judge, and its bill."""

    kind: Kind
    label: str
    item: str
    bill: Bill


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCost:
    lines: list[Line]
    bill: Bill
    per_step: dict[str, float]
    best_step: int | None  # of the best checkpoint
    until_best: dict[str, float]
    after_best: dict[str, float]
    saved: dict[str, float]  # by answers of judges that were used again


def read_run_cost(run: Run) -> RunCost:
    prices = read_prices(run.team_id)
    by: Literal["step", "day"] = "step" if run.last_step <= MOST_STEPS else "day"
    portions = read_portions([run], prices, by=by)[run.pk]
    charged = list(charge_all(portions, prices))
    bill = make_bill(charged)
    rows = [] if run.is_imported else list_checkpoints(run).rows
    until: dict[str, float] = {}
    step = next((row.checkpoint.step for row in rows if row.is_best), 0)
    if ended := run.steps.filter(step=step, superseded_by=None).first():
        time = ended.time.timestamp()
        until = make_bill(charge_all(portions, prices, until=time)).costs
    return RunCost(
        lines=list(_lines(charged)),
        bill=bill,
        per_step=_scale(bill.costs, 1 / run.last_step if run.last_step else 0.0),
        best_step=step if ended else None,
        until_best=until,
        after_best={c: cost - until.get(c, 0.0) for c, cost in bill.costs.items()},
        saved=_saved(charged),
    )


def _lines(charged: Sequence[Portion]) -> Iterator[Line]:
    parts: dict[tuple[Kind, str, str], list[Portion]] = {}
    for portion in charged:
        key = portion.kind, portion.label, portion.item
        parts.setdefault(key, []).append(portion)
    for (kind, label, item), own in parts.items():
        yield Line(kind=kind, label=label, item=item, bill=make_bill(own))


def _saved(charged: Sequence[Portion]) -> dict[str, float]:
    """Price reused answers as the mean call of their judge."""
    saved: dict[str, float] = {}
    for line in _lines([part for part in charged if part.kind == "judge"]):
        calls = line.bill.amounts.get("calls", 0.0)
        share = line.bill.amounts.get("from_file", 0.0) / calls if calls else 0.0
        for currency, cost in _scale(line.bill.costs, share).items():
            saved[currency] = saved.get(currency, 0.0) + cost
    return {currency: cost for currency, cost in saved.items() if cost}


def _scale(costs: Mapping[str, float], factor: float) -> dict[str, float]:
    return {currency: factor * cost for currency, cost in costs.items() if factor}


@dataclass(frozen=True, kw_only=True, slots=True)
class TeamRow:
    key: str  # 2026-11, a person's name, a model
    num_runs: int
    bill: Bill


def read_team_costs(team: Team, by: By) -> list[TeamRow]:
    """Read the costs of all its runs, of tests, rescorings and questions; months from
    the newest, the others by cost.
    """
    prices = read_prices(team)
    runs = {
        run.pk: run
        for run in Run.objects.filter(team=team)
        .select_related("owner")
        .defer("config", "metric_names", "summary")
    }
    portions = read_portions(list(runs.values()), prices, by="day")
    used = [
        (pk, _name(runs[pk].owner), runs[pk].model_label, portion)
        for pk, own in portions.items()
        for portion in own
    ]
    for use in JudgeUse.objects.filter(team=team).select_related("user", "run"):
        model = use.run.model_label if use.run else use.model
        used += [(0, _name(use.user), model, part) for part in _portions_of(use)]
    bills: dict[str, Bill] = {}
    members: dict[str, set[int]] = {}
    for pk, person, model, portion in used:
        parts = _by_month(portion) if by == "month" else [("", portion)]
        for month, part in parts:
            key = {"month": month, "person": person, "model": model}[by]
            bill = bills.setdefault(key, Bill())
            members.setdefault(key, set()).update({pk} - {0})
            for charged in prices.charge(part):
                bill.add(charged)
    rows = [
        TeamRow(key=key, num_runs=len(members[key]), bill=bill)
        for key, bill in bills.items()
    ]
    if by == "month":
        return sorted(rows, key=lambda row: row.key, reverse=True)
    return sorted(
        rows, key=lambda row: (-max(row.bill.costs.values(), default=0.0), row.key)
    )


def find_unpriced(team: Team) -> list[tuple[str, str, str]]:
    """List what the team's newest runs use without a price: unit, its title, name."""
    prices = read_prices(team)
    runs = Run.objects.filter(team=team).defer("config", "summary").order_by("-pk")
    portions = read_portions(list(runs[:MOST_RUNS]), prices)
    missing = {
        (portion.unit, portion.item)
        for own in portions.values()
        for portion in charge_all(own, prices)
        if portion.is_unpriced
    }
    return [(unit, Unit(unit).label, name) for unit, name in sorted(missing)]


def _name(user: object) -> str:
    return str(user or "former member")


def _portions_of(use: JudgeUse) -> Iterator[Portion]:
    at = datetime.combine(use.day, datetime.min.time(), UTC).timestamp()
    for name in USAGE:
        if amount := getattr(use, name):
            yield Portion(
                kind="judge",
                label=use.source,
                unit=name,
                item=use.model,
                begin=at,
                end=at,
                amount=amount,
            )


def _by_month(portion: Portion) -> Iterator[tuple[str, Portion]]:
    cuts, month = [], datetime.fromtimestamp(portion.begin, UTC).replace(day=1)
    month = month.replace(hour=0, minute=0, second=0, microsecond=0)
    while month.timestamp() < portion.end:
        month = (month + timedelta(days=32)).replace(day=1)
        cuts.append(month.timestamp())
    for part in portion.split(cuts):
        yield f"{datetime.fromtimestamp(part.begin, UTC):%Y-%m}", part


def price_tokens(
    team: Team, model: str, tokens: Mapping[str, float], *, at: datetime
) -> Bill:
    """Return what tokens of a judge cost by the prices of a time."""
    portions = [
        Portion(
            kind="judge",
            label=model,
            unit=unit,
            item=model,
            begin=at.timestamp(),
            end=at.timestamp(),
            amount=tokens.get(unit, 0),
        )
        for unit in TOKENS
    ]
    return make_bill(charge_all(portions, read_prices(team)))


def forecast(team: Team, config: RunConfig, *, device: str, seconds: float) -> Bill:
    """Return what a run of this length would use of its machine, by today's prices."""
    item, number = read_device(device, config.model_dump(mode="json"))
    now = datetime.now(UTC).timestamp()
    portion = Portion(
        kind="attempt",
        label="1",
        unit=Unit.GPU_HOUR,
        item=item,
        begin=now,
        end=now,
        amount=seconds / HOUR * number,
    )
    return make_bill(charge_all([portion], read_prices(team)))


def find_over_budget() -> dict[Run, str]:
    """Find runs at work that have cost more than their budget, and say how much."""
    key = "config__logging__budget_cost"
    runs = Run.objects.filter(state__in=HELD, **{f"{key}__gt": 0})
    over: dict[Run, str] = {}
    for run in runs.order_by("team"):
        budget = run.config["logging"]["budget_cost"]
        for currency, cost in read_bills([run])[run.pk].costs.items():
            if cost > budget:
                over[run] = (
                    f"The run has cost {write_money(cost, currency)}; its budget is "
                    f"{write_money(budget, currency)}. It goes on."
                )
    return over
