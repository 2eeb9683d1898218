"""What runs use, and what it costs: computed from attempts, steps and prices, never
stored, so that a corrected price corrects all.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from django.contrib.postgres.fields import ArrayField
from django.db.models import BigIntegerField, F, Func, OuterRef, QuerySet, Subquery
from django.db.models import Value as SqlValue

from dashboard.accounts.models import Team
from dashboard.accounts.templatetags.numbers import sig3
from dashboard.costs.models import Price, Unit
from dashboard.project.cache import ByteCache
from dashboard.project.database import fetch_all
from dashboard.runs.charts.series import Array
from dashboard.runs.models import Run, RunAttempt, RunEvent
from dashboard.runs.queue.hosts import Needs
from trainer.rewards.model_judge.client import USAGE

Kind = Literal["attempt", "server", "judge"]
Period = Literal["day", "step"]
COST_AXES = {"gpu_hours": "GPU-hours", "cost": "cost"}
Used = Callable[[Array], Array]  # times, in seconds since 1970 → what was used
CPU, UNKNOWN = "cpu", "unknown hardware"
HOUR, MILLION = 3_600.0, 1e6
MAX_BYTES = 16 * 2**20  # of bills, in each process
BILL_BYTES = 1_500
FIRST_LINES = 20  # of an attempt's log, among which it tells its device
# 2 × NVIDIA H100 80GB HBM3; cpu (8 threads)
DEVICE = re.compile(r"(?:(\d+) × )?(.+?)(?: \(\d+ threads\))?")
JUDGED = rf"^(eval/[^/]+/)?judge/[^/]+/({'|'.join(USAGE)})$"
METERED = rf"{JUDGED}|^server/[^/]+/[^/]+/(gpu_)?hours$"
PERIODS = {"day": "date_trunc('day', time, 'UTC')", "step": "step"}
# Superseded steps count: they were trained. Other trainers report any number; sums of
# those above 1e15 might overflow.
USED = """
    WITH places AS MATERIALIZED (
        SELECT id, metric, place FROM runs_run,
               unnest(metric_names) WITH ORDINALITY AS named (metric, place)
         WHERE id = ANY(%(runs)s) AND metric ~ %(metered)s
    ), used AS (
        SELECT places.id, metric, step, time, values[place] AS value
          FROM places JOIN runs_step ON run_id = places.id
         UNION ALL
        SELECT run_id, metric, step, time, measured::float8
          FROM runs_evaluation, jsonb_each_text(metrics) AS reported (metric, measured)
         WHERE run_id = ANY(%(runs)s) AND metric ~ %(metered)s
    )
    SELECT id, metric, extract(epoch FROM min(time))::float8,
           extract(epoch FROM max(time))::float8, sum(value)
      FROM used WHERE value >= 0 AND value < 1e15
     GROUP BY id, metric, {period}
"""
JUDGE_MODELS = """
    SELECT id, rule ->> 'name', rule -> 'params' ->> 'model'
      FROM runs_run, jsonb_path_query(
               config, '$.**.rules[*] ? (@.params.model.type() == "string")') AS rule
     WHERE id = ANY(%(runs)s)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Portion:
    """An amount that was used evenly from `begin` to `end`, in seconds since 1970.

    The unit is that of a price, or of counts without one, such as calls.
    """

    kind: Kind = "judge"
    label: str = ""  # the attempt's number, the kind of server, the judge's rule
    unit: str
    item: str  # the hardware, or the judge's model
    begin: float
    end: float
    amount: float  # GPU-hours, tokens, calls
    cost: float | None = None  # None: not charged, or there is no price
    currency: str = ""

    @property
    def is_unpriced(self) -> bool:
        """Whether it lacks a price; counts and hours of a CPU need none."""
        has_unit = self.unit in Unit.values and self.item != CPU
        return self.cost is None and has_unit and self.amount > 0

    @property
    def is_of_gpu(self) -> bool:
        return self.unit == Unit.GPU_HOUR and self.item not in (CPU, UNKNOWN)

    def split(self, cuts: Iterable[float]) -> Iterator[Portion]:
        """Yield its parts between the cuts, each with its share of amount and cost."""
        inside = sorted(cut for cut in cuts if self.begin < cut < self.end)
        for begin, end in pairwise([self.begin, *inside, self.end]):
            share = (end - begin) / (self.end - self.begin) if inside else 1.0
            cost = None if self.cost is None else self.cost * share
            amount = self.amount * share
            yield replace(self, begin=begin, end=end, amount=amount, cost=cost)


class Prices:
    """A team's prices, by unit, item and day."""

    def __init__(self, prices: Iterable[Price]) -> None:
        rows = sorted(prices, key=lambda price: (price.valid_from, price.pk))
        self.version = len(rows)  # which are only added
        # Of one day the newest row.
        self._prices: dict[tuple[str, str], dict[float, Price]] = defaultdict(dict)
        for price in rows:
            self._prices[price.unit, price.name][midnight(price.valid_from)] = price

    def charge(self, portion: Portion) -> Iterator[Portion]:
        """Yield its parts with their costs; a price change at midnight splits it."""
        prices = self._prices.get((portion.unit, portion.item), {})
        for part in portion.split(prices):
            held = [price for day, price in prices.items() if day <= part.begin]
            if not held or held[-1].amount is None:
                yield part
            else:
                per = 1.0 if part.unit == Unit.GPU_HOUR else MILLION
                cost = part.amount * held[-1].amount / per
                yield replace(part, cost=cost, currency=held[-1].currency)


def midnight(day: date) -> float:
    """Return when a day begins in UTC, in seconds since 1970."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


def read_prices(team: Team | int) -> Prices:
    return Prices(Price.objects.filter(team=team))


@dataclass(kw_only=True)
class Bill:
    """Costs by currency, which are never added, and what has no price."""

    costs: dict[str, float] = field(default_factory=partial(defaultdict, float))
    gpu_hours: float = 0.0
    worker_hours: float = 0.0  # without a GPU, or with unknown hardware
    # Tokens and calls, and what has no price, by unit.
    amounts: dict[str, float] = field(default_factory=partial(defaultdict, float))
    unpriced: dict[str, float] = field(default_factory=partial(defaultdict, float))

    def add(self, portion: Portion) -> None:
        """Add a portion that was charged."""
        if portion.is_of_gpu:
            self.gpu_hours += portion.amount
        elif portion.unit == Unit.GPU_HOUR:
            self.worker_hours += portion.amount
        else:
            self.amounts[portion.unit] += portion.amount
        if portion.cost is not None:
            self.costs[portion.currency] += portion.cost
        elif portion.is_unpriced:
            self.unpriced[portion.unit] += portion.amount

    @property
    def has_one_price(self) -> bool:
        """Whether all of it is priced, in one currency."""
        return len(self.costs) == 1 and not self.unpriced

    @property
    def is_least(self) -> bool:
        """Whether a part has no price, or unknown tokens."""
        return bool(self.unpriced or self.amounts.get("calls_without_usage"))

    @property
    def price_text(self) -> str:
        """20.64 EUR; ≥ 20.64 EUR where a part has no price, or unknown tokens."""
        words = [write_money(cost, name) for name, cost in sorted(self.costs.items())]
        if not words:
            return "price not set" if self.unpriced else ""
        return f"{'≥ ' if self.is_least else ''}{' + '.join(words)}"

    @property
    def hours_text(self) -> str:
        hours = {"GPU-hours": self.gpu_hours, "worker-hours": self.worker_hours}
        return ", ".join(f"{sig3(h)} {unit}" for unit, h in hours.items() if h)

    @property
    def text(self) -> str:
        """The cost; without one the hours."""
        if self.costs:
            return self.price_text
        return ", ".join(filter(None, [self.hours_text, self.price_text]))


def write_money(cost: float, currency: str) -> str:
    """Write two decimals, three digits of less than 1."""
    text = f"{cost:,.2f}" if cost >= 1 or cost == 0 else sig3(cost)
    return f"{text} {currency}".strip()


def make_bill(portions: Iterable[Portion]) -> Bill:
    bill = Bill()
    for portion in portions:
        bill.add(portion)
    return bill


def sum_until(
    portions: Sequence[Portion], times: Array, value: Callable[[Portion], float]
) -> Array:
    """Sum what was used until each time; in a span, evenly."""
    total = np.zeros(len(times))
    points = []
    for portion in portions:
        begin, end = portion.begin, portion.end
        if end > begin:
            total += value(portion) * np.clip((times - begin) / (end - begin), 0, 1)
        else:
            points.append((end, value(portion)))
    if points:
        at, values = np.array(sorted(points)).T
        sums = np.concatenate([[0.0], np.cumsum(values)])
        total += sums[np.searchsorted(at, times, side="right")]
    return total


# What runs use.


def read_portions(
    runs: Iterable[Run], prices: Prices, *, by: Period = "day"
) -> dict[int, list[Portion]]:
    """Read what runs use and what it costs, from the first claim until now; queued
    runs use nothing.

    Three queries. What servers and judges did in a day or step counts as used evenly
    between its first and last step or evaluation.
    """
    portions: dict[int, list[Portion]] = {run.pk: [] for run in runs}
    _add_attempts(portions)
    query = USED.format(period=PERIODS[by])
    used = fetch_all(query, {"runs": list(portions), "metered": METERED})
    models: dict[int, dict[str, str]] = defaultdict(dict)
    using = list({pk for pk, *_ in used})
    for pk, rule, model in fetch_all(JUDGE_MODELS, {"runs": using}):
        models[pk][rule] = model
    for pk, name, begin, end, amount in used:
        kind: Kind = "judge"
        if name.startswith("server/"):
            kind, label, item, measured = name.split("/")
            unit: str = Unit.GPU_HOUR
            item = item if measured == "gpu_hours" else UNKNOWN
        else:
            *_, label, unit = name.split("/")
            item = models[pk].get(label, label)
        portions[pk].append(
            Portion(
                kind=kind,
                label=label,
                unit=unit,
                item=item,
                begin=begin,
                end=end,
                amount=amount,
            )
        )
    return {
        pk: [part for portion in own for part in prices.charge(portion)]
        for pk, own in portions.items()
    }


_now = time.time


def _add_attempts(portions: Mapping[int, list[Portion]]) -> None:
    device = RunEvent.objects.filter(
        run=OuterRef("run"),
        attempt=OuterRef("number"),
        line__lte=FIRST_LINES,
        type__in=("run_started", "run_resumed"),
    )
    rows = (
        RunAttempt.objects.filter(run__in=portions)
        .order_by("run", "number")
        .annotate(
            device=Subquery(device.values("body__device")[:1]),
            **{part: F(f"run__config__{part}") for part in ("rollout", "distributed")},
        )
        .values(
            *("run", "number", "claimed_at", "ended_at"),
            *("device", "rollout", "distributed"),
        )
    )
    known: dict[int, str] = {}
    for row in rows:
        # Until it tells its device, it has the one that the run had before.
        device_name = known[row["run"]] = row["device"] or known.get(row["run"], "")
        item, number = read_device(device_name, row)
        begin = row["claimed_at"].timestamp()
        end = row["ended_at"].timestamp() if row["ended_at"] else max(begin, _now())
        portions[row["run"]].append(
            Portion(
                kind="attempt",
                label=str(row["number"]),
                unit=Unit.GPU_HOUR,
                item=item,
                begin=begin,
                end=end,
                amount=(end - begin) / HOUR * number,
            )
        )


def read_device(device: str, config: Mapping[str, Any]) -> tuple[str, int]:
    """Return hardware and number of its GPUs, from what a trainer tells of its device.

    On CPUs, the number of workers or nodes. A copy of the model in vLLM may take more
    GPUs than there are processes.
    """
    match = DEVICE.fullmatch(device)
    name = match[2] if match else UNKNOWN
    if name in (CPU, UNKNOWN):
        return name, int((config["distributed"] or {}).get("num_nodes") or 1)
    return name, max(int((match and match[1]) or 1), Needs.of(config).num_gpus)


_bills: ByteCache[Bill] = ByteCache(MAX_BYTES, size=lambda _: BILL_BYTES)


def read_bills(runs: Sequence[Run]) -> dict[int, Bill]:
    """Read the costs of runs of one team; four queries.

    One for ended runs that were read before: what they cost changes when they are
    extended, or with a price.
    """
    if not runs:
        return {}
    prices, now = read_prices(runs[0].team_id), _now()

    def read(missing: Sequence[tuple[Any, ...]]) -> dict[tuple[Any, ...], Bill]:
        portions = read_portions([keys[key] for key in missing], prices)
        return {key: make_bill(portions[keys[key].pk]) for key in missing}

    keys = {
        (run.pk, run.attempt, run.seq, prices.version, run.has_ended or now): run
        for run in runs
    }
    return {keys[key].pk: bill for key, bill in _bills.get(keys, read).items()}


def read_used(runs: Sequence[Run], axis: str) -> dict[int, Used]:
    """Read what each run had used by a time: GPU-hours, or its cost; the latter only
    where all is priced in the currency that most of the runs have. Four queries.
    """
    if not runs:
        return {}
    portions = read_portions(runs, read_prices(runs[0].team_id), by="step")
    if axis == "gpu_hours":
        return {
            pk: partial(sum_until, own, value=_gpu_hours)
            for pk, own in portions.items()
            if any(map(_gpu_hours, own))
        }
    bills = {pk: make_bill(own) for pk, own in portions.items()}
    main = main_currency(bills.values())
    return {
        pk: partial(sum_until, own, value=lambda portion: portion.cost or 0.0)
        for pk, own in portions.items()
        if bills[pk].has_one_price and main in bills[pk].costs
    }


def _gpu_hours(portion: Portion) -> float:
    return portion.amount if portion.is_of_gpu else 0.0


def main_currency(bills: Iterable[Bill]) -> str:
    """Return the currency of most of the bills; "" where none has a cost."""
    counts = Counter(name for bill in bills for name in bill.costs)
    return max(counts, key=lambda name: (counts[name], name), default="")


def sort_by_cost(runs: QuerySet[Run], *, descending: bool) -> QuerySet[Run]:
    """Sort by cost in the team's currency, then by GPU-hours; free runs come last."""
    ids_of_all = runs.order_by().values("pk")
    listed = runs.model.objects.filter(pk__in=ids_of_all)
    bills = read_bills(list(listed.only("team", "state", "attempt", "seq")))
    main = main_currency(bills.values())

    def place(pk: int) -> tuple[bool, float, float, int]:
        bill = bills[pk]
        costs = bill.costs.get(main, 0.0), bill.gpu_hours
        sign = -1 if descending else 1
        return not any(costs), sign * costs[0], sign * costs[1], -pk

    of_ids = SqlValue(
        sorted(bills, key=place), output_field=ArrayField(BigIntegerField())
    )
    return runs.order_by(Func(of_ids, F("pk"), function="array_position"))
