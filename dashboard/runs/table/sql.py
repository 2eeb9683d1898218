"""A query's tree as one condition of SQL: values are parameters, never text of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import and_, or_
from types import MappingProxyType
from typing import Any, Literal, get_args

from django.db.models import (
    BooleanField,
    Exists,
    F,
    FloatField,
    Func,
    JSONField,
    OuterRef,
    Q,
    TextField,
)
from django.db.models import Value as SqlValue
from django.db.models.expressions import Combinable
from django.db.models.lookups import (
    Exact,
    GreaterThan,
    GreaterThanOrEqual,
    IContains,
    IExact,
    LessThan,
    LessThanOrEqual,
    Lookup,
)

from dashboard.accounts.models import User
from dashboard.runs.charts.chart import direction_of
from dashboard.runs.config.snapshot import json_path
from dashboard.runs.models import (
    MetricSummary,
    Run,
    RunStar,
)
from dashboard.runs.table.expressions import (
    CONFIG,
    MOMENTS,
    NAMED,
    NUMBERS,
    TEXTS,
    And,
    Compare,
    Flag,
    Node,
    Not,
    Or,
    QueryError,
    Text,
    Value,
    explain_unknown,
    is_none,
    join_or,
    walk,
)
from dashboard.runs.table.parser import read_literal_number, read_moment, read_number

# What of a run can be compared, sorted and grouped by, as SQL expressions.

Stat = Literal["last", "best", "min", "max", "mean"]
STATS: tuple[Stat, ...] = get_args(Stat)


class IsTrue(Func):
    """A condition that is never NULL, so that `not` turns it round for every run."""

    template = "((%(expressions)s) IS TRUE)"
    output_field = BooleanField()


class _Setting(Func):
    # Silent: a run that lacks the setting has none, which is no error.
    template = "jsonb_path_query_first(%(expressions)s::jsonpath, '{}', true)"
    arity = 2

    def __init__(self, key: str, condition: str = "", **extra: Any) -> None:
        # Strict: a list of numbers is not its first number.
        path = f"strict {json_path(key)}{condition}"
        super().__init__(F("config"), SqlValue(path), **extra)


class SettingNumber(_Setting):
    template = f"({_Setting.template})::float8"
    output_field = FloatField()

    def __init__(self, key: str, **extra: Any) -> None:
        super().__init__(key, ' ? (@.type() == "number")', **extra)


class SettingText(_Setting):
    """NULL for one that is none as for one that is not there."""

    template = f"({_Setting.template} #>> '{{}}')"
    output_field = TextField()


class SettingValue(_Setting):
    output_field = JSONField()


def stat_of(stat: Stat, metric: str, prefix: str = "") -> Combinable:
    """Over MetricSummary; ValueError where the metric has no best."""
    if stat == "best":
        stat = extreme_of(metric)
    if stat == "mean":
        return F(f"{prefix}total") / F(f"{prefix}num")
    return F(prefix + {"last": "last", "min": "low", "max": "high"}[stat])


def extreme_of(metric: str) -> Literal["min", "max"]:
    direction = direction_of(metric)
    if direction is None:
        raise ValueError(
            f"Of {metric} neither more nor less is better, so it has no best. Use "
            f"{metric}.max or {metric}.min."
        )
    return "max" if direction == "higher" else "min"


def split_metric(key: str) -> tuple[str, Stat] | None:
    """`reward/mean.last` in its parts; a metric with a slash may stand alone: its last.

    >>> split_metric("reward/mean"), split_metric("name")
    (('reward/mean', 'last'), None)
    """
    metric, dot, stat = key.rpartition(".")
    if dot and metric and stat in STATS:
        return metric, stat
    return (key, "last") if "/" in key else None


ORDERINGS: Mapping[str, type[Lookup[Any]]] = MappingProxyType(
    {
        "<": LessThan,
        "<=": LessThanOrEqual,
        ">": GreaterThan,
        ">=": GreaterThanOrEqual,
        "=": Exact,
    }
)
EQUALITY = ("=", "!=")
MATCHING = ("=", "!=", "~", "!~")
# As pages write what a config calls true and false.
WORDS = MappingProxyType({"yes": "true", "no": "false"})


def condition(tree: Node, user: User) -> Q:
    """What a query asks for, archived and trashed runs aside unless it names them."""
    flags = {term.name for term in walk(tree) if isinstance(term, Flag)}
    found = compile_node(tree, user)
    if "archived" not in flags:
        found &= Q(archived_at=None) | Q(trashed_at__isnull=False)
    return found if "trashed" in flags else found & Q(trashed_at=None)


def compile_node(node: Node, user: User) -> Q:
    match node:
        case Not():
            return ~compile_node(node.node, user)
        case And():
            return reduce(and_, (compile_node(n, user) for n in node.nodes), Q())
        case Or():
            return reduce(or_, (compile_node(n, user) for n in node.nodes))
        case Flag():
            return _flag(node.name, user)
        case Text():
            return mentions(node.text)
        case Compare():
            return _compare(node)
    raise AssertionError(node)


def _flag(name: str, user: User) -> Q:
    if name == "starred":
        return Q(Exists(RunStar.objects.filter(run=OuterRef("pk"), user=user)))
    return Q(**{f"{name}_at__isnull": False})


def mentions(text: str) -> Q:
    found = (
        Q(name__icontains=text)
        | Q(notes__icontains=text)
        | Q(model_label__icontains=text)
        | Q(pk__in=Run.objects.filter(owner__username__icontains=text).values("pk"))
        | Q(dataset_version__dataset__name__icontains=text)
        | Q(recipe_version__recipe__name__icontains=text)
        | Q(tags__contains=[text])
    )
    number = text.removeprefix("#")
    is_number = number.isascii() and number.isdigit() and len(number) < 19
    return found | Q(pk=int(number)) if is_number else found


def _compare(term: Compare) -> Q:
    """`!=` and `!~` turn round what `=` and `~` find, runs without a value included."""
    if term.operator in ("!=", "!~"):
        return ~_any(term, term.operator[1])
    return _any(term, term.operator)


def _any(term: Compare, operator: str) -> Q:
    return reduce(or_, (_one(term, operator, value) for value in term.values))


def _one(term: Compare, operator: str, value: Value) -> Q:
    key = term.key
    if key.startswith(CONFIG) and key != CONFIG:
        return _setting(key.removeprefix(CONFIG), operator, value, term)
    special = NAMED.get(key)
    if special is not None:
        _allow(term, MATCHING if key in ("tag", "dataset", "sweep") else EQUALITY)
        return special(operator, value, term)
    if key in TEXTS:
        _allow(term, MATCHING)
        return _text(TEXTS[key], operator, value)
    if key in NUMBERS:
        _allow(term, ("=", "!=", "<", "<=", ">", ">="))
        number = _read(read_number, term, value, key)
        return _is(ORDERINGS[operator](NUMBERS[key], number))
    if key in MOMENTS:
        _allow(term, ("<", "<=", ">", ">="))
        moment = _read(read_moment, term, value, key)
        return _is(ORDERINGS[operator](F(MOMENTS[key]), moment))
    parts = split_metric(key)
    if parts is None:
        raise QueryError(explain_unknown(key), term.start, term.start + len(key))
    return _metric(*parts, operator, value, term)


def _is(lookup: Lookup[Any]) -> Q:
    return Q(IsTrue(lookup))


def _allow(term: Compare, operators: tuple[str, ...]) -> None:
    if term.operator not in operators:
        raise QueryError(
            f"{term.key} is compared by {join_or(operators)}; got {term.operator}.",
            term.start,
            term.end,
        )


def _read(
    read: Callable[[str, str], Any], term: Compare, value: Value, key: str
) -> Any:
    try:
        return read(value.text, key)
    except ValueError as error:
        raise QueryError(str(error), term.value_start, term.end) from None


def _text(path: str, operator: str, value: Value) -> Q:
    if operator == "~":
        return Q(**{f"{path}__icontains": value.text})
    if is_none(value):
        empty = Q(**{f"{path}__isnull": True})
        return empty | Q(**{path: ""})
    return Q(**{f"{path}__iexact": value.text})


def _setting(key: str, operator: str, value: Value, term: Compare) -> Q:
    text = SettingText(key)
    if operator == "~":
        return _is(IContains(text, value.text))
    number = None if value.is_quoted else read_literal_number(value.text)
    if operator != "=":
        if number is None:
            raise QueryError(
                f"{term.key} {operator} needs a number, such as 1e-5; got "
                f"{value.text!r}.",
                term.value_start,
                term.end,
            )
        return _is(ORDERINGS[operator](SettingNumber(key), number))
    if is_none(value):
        return Q(IsNone(text))
    meant = value.text if value.is_quoted else WORDS.get(value.text.lower(), value.text)
    found = _is(IExact(text, meant))
    if meant != value.text:
        found |= _is(IExact(text, value.text))
    return found if number is None else found | _is(Exact(SettingNumber(key), number))


class IsNone(IsTrue):
    template = "((%(expressions)s) IS NULL)"


def _metric(metric: str, stat: Stat, operator: str, value: Value, term: Compare) -> Q:
    _allow(term, ("=", "!=", "<", "<=", ">", ">="))
    summaries = MetricSummary.objects.filter(run=OuterRef("pk"), name=metric)
    if operator == "=" and is_none(value):
        return ~Q(Exists(summaries))
    number = _read(read_number, term, value, f"{metric}.{stat}")
    try:
        expression: Combinable = stat_of(stat, metric)
    except ValueError as error:
        raise QueryError(str(error), term.start, term.end) from None
    return Q(Exists(summaries.filter(ORDERINGS[operator](expression, number))))
