"""Costs of a run in detail, of a team by month, person and model, and of what is to
come.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Literal

import numpy as np

from dashboard.accounts.models import Team
from dashboard.costs.ledger import (
    HOUR,
    Bill,
    Kind,
    Portion,
    Prices,
    make_bill,
    midnight,
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
from trainer.rewards.model_judge.client import USAGE

MOST_STEPS = 5_000  # of a run whose tokens are read by step; of a longer one by day
MAX_LISTED = 100  # newest runs, whose hardware and models a price form offers
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
    num_steps = run.last_step - (run.fork_step or 0)
    by: Literal["step", "day"] = "step" if num_steps <= MOST_STEPS else "day"
    portions = read_portions([run], read_prices(run.team_id), by=by)[run.pk]
    bill = make_bill(portions)
    rows = [] if run.is_imported else list_checkpoints(run).rows
    until: dict[str, float] = {}
    step = next((row.checkpoint.step for row in rows if row.is_best), 0)
    if ended := run.steps.filter(step=step, superseded_by=None).first():
        time = ended.time.timestamp()
        parts = (part for portion in portions for part in portion.split([time]))
        until = make_bill(part for part in parts if part.end <= time).costs
    return RunCost(
        lines=list(_lines(portions)),
        bill=bill,
        per_step=_scale(bill.costs, 1 / num_steps if num_steps > 0 else 0.0),
        best_step=step if ended else None,
        until_best=until,
        after_best={
            currency: max(0.0, cost - until.get(currency, 0.0))  # but for rounding
            for currency, cost in bill.costs.items()
        },
        saved=_saved(portions),
    )


def _lines(portions: Iterable[Portion]) -> Iterator[Line]:
    parts: dict[tuple[Kind, str, str], list[Portion]] = {}
    for portion in portions:
        key = portion.kind, portion.label, portion.item
        parts.setdefault(key, []).append(portion)
    for (kind, label, item), own in parts.items():
        yield Line(kind=kind, label=label, item=item, bill=make_bill(own))


def _saved(portions: Sequence[Portion]) -> dict[str, float]:
    """Price reused answers as the mean call of their judge."""
    saved: dict[str, float] = defaultdict(float)
    for line in _lines(part for part in portions if part.kind == "judge"):
        amounts = line.bill.amounts
        share = amounts["from_file"] / amounts["calls"] if amounts["calls"] else 0.0
        for currency, cost in _scale(line.bill.costs, share).items():
            saved[currency] += cost
    return saved


def _scale(costs: Mapping[str, float], factor: float) -> dict[str, float]:
    return {
        currency: factor * cost for currency, cost in costs.items() if factor * cost
    }


def list_items(team: Team) -> list[str]:
    """List the hardware and the judges' models that the team's newest runs used."""
    runs = Run.objects.filter(team=team).defer("config", "summary").order_by("-pk")
    portions = chain.from_iterable(
        read_portions(runs[:MAX_LISTED], Prices([])).values()
    )
    judges = JudgeUse.objects.filter(team=team).values_list("model", flat=True)
    return sorted({*judges, *(portion.item for portion in portions)})


@dataclass(frozen=True, kw_only=True, slots=True)
class TeamRow:
    key: str  # 2026-11, a person's name, a model
    bill: Bill = field(default_factory=Bill)
    runs: set[int] = field(default_factory=set)  # their ids


def read_team_costs(team: Team, by: By) -> list[TeamRow]:
    """Read the costs of all its runs, of tests, rescorings and questions; months from
    the newest, the others by cost.
    """
    prices = read_prices(team)
    runs = Run.objects.filter(team=team).select_related("owner")
    listed = list(runs.defer("config", "summary"))
    portions = read_portions(listed, prices)
    used = [({run.pk}, run.owner, run.model_label, portions[run.pk]) for run in listed]
    for use in JudgeUse.objects.filter(team=team).select_related("user", "run"):
        model = use.run.model_label if use.run else use.model
        amounts = {name: getattr(use, name) for name in USAGE if getattr(use, name)}
        own = _charge_at(midnight(use.day), use.model, amounts, prices)
        used.append((set(), use.user, model, own))
    rows: dict[str, TeamRow] = {}
    for ids, person, model, own in used:
        names = {"person": str(person or "former member"), "model": model}
        for month, part in chain.from_iterable(map(_by_month, own)):
            key = names.get(by, month)
            row = rows.setdefault(key, TeamRow(key=key))
            row.runs.update(ids)
            row.bill.add(part)
    if by == "month":
        return [rows[key] for key in sorted(rows, reverse=True)]
    return sorted(
        rows.values(),
        key=lambda row: (-max(row.bill.costs.values(), default=0.0), row.key),
    )


def _charge_at(
    time: float, item: str, amounts: Mapping[str, float], prices: Prices
) -> list[Portion]:
    """Charge amounts by unit that were used at a moment."""
    return [
        part
        for unit, amount in amounts.items()
        for part in prices.charge(
            Portion(unit=unit, item=item, begin=time, end=time, amount=amount)
        )
    ]


def _by_month(portion: Portion) -> Iterator[tuple[str, Portion]]:
    first, last = map(_month_of, (portion.begin, portion.end))
    begins = np.arange(first, last + 1).astype("datetime64[s]").astype(float)
    for part in portion.split(begins.tolist()):
        yield str(_month_of(part.begin)), part


def _month_of(time: float) -> np.datetime64:
    month: np.datetime64 = np.datetime64(int(time), "s").astype("datetime64[M]")
    return month


def price_at(
    team: Team, item: str, amounts: Mapping[str, float], *, at: datetime
) -> Bill:
    """Return what amounts by unit, of hardware or a judge, cost by a time's prices."""
    return make_bill(_charge_at(at.timestamp(), item, amounts, read_prices(team)))


def forecast(team: Team, config: RunConfig, *, device: str, seconds: float) -> Bill:
    """Return what a run of this length would use of its machine, by today's prices."""
    item, number = read_device(device, config.model_dump(mode="json"))
    hours = seconds / HOUR * number
    return price_at(team, item, {Unit.GPU_HOUR: hours}, at=datetime.now(UTC))


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
