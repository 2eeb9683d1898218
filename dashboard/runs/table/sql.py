"""A query's tree as an SQL condition; values are always parameters."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import and_, or_
from types import MappingProxyType
from typing import Any

from django.db.models import (
    Exists,
    F,
    OuterRef,
    Q,
)
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
from django.utils import timezone

from dashboard.accounts.models import User
from dashboard.project.database import read_whole
from dashboard.project.errors import UserError
from dashboard.runs.models import (
    ENDED,
    EvaluationSet,
    MetricSummary,
    Run,
    RunStar,
    RunState,
)
from dashboard.runs.table.columns import ABOUT, MOMENTS, NUMBERS, TEXTS
from dashboard.runs.table.expressions import (
    CONFIG,
    IsNone,
    IsTrue,
    JoinedTags,
    SettingNumber,
    SettingText,
    Stat,
    split_metric,
    stat_of,
)
from dashboard.runs.table.parser import (
    And,
    Compare,
    Flag,
    Node,
    Not,
    Or,
    QueryError,
    Text,
    Value,
    walk,
)

ACTIVE = "active"  # every state that has not ended
STATES = (ACTIVE, "ended", *RunState.values)

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
# Pages show true and false as yes and no.
WORDS = MappingProxyType({"yes": "true", "no": "false"})

UNITS = {"s": 1.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d|w)")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?%?")


def condition(tree: Node, user: User | int) -> Q:
    """Compile a query; excludes archived and trashed runs unless it names them."""
    flags = {term.name for term in walk(tree) if isinstance(term, Flag)}
    matches = compile_node(tree, user)
    if "archived" not in flags:
        matches &= Q(archived_at=None) | Q(trashed_at__isnull=False)
    return matches if "trashed" in flags else matches & Q(trashed_at=None)


def compile_node(node: Node, user: User | int) -> Q:
    match node:
        case Not():
            return ~compile_node(node.node, user)
        case And():
            return reduce(and_, (compile_node(n, user) for n in node.nodes), Q())
        case Or():
            return reduce(or_, (compile_node(n, user) for n in node.nodes))
        case Flag():
            if node.name == "starred":
                return Q(Exists(RunStar.objects.filter(run=OuterRef("pk"), user=user)))
            return Q(**{f"{node.name}_at__isnull": False})
        case Text():
            return mentions(node.text)
        case Compare():
            # != and !~ invert = and ~, including runs without a value.
            is_turned = node.operator in ("!=", "!~")
            operator = node.operator[1] if is_turned else node.operator
            matches = reduce(
                or_, (_one(node, operator, value) for value in node.values)
            )
            return ~matches if is_turned else matches
    raise AssertionError(node)


def mentions(text: str) -> Q:
    matches = (
        Q(name__icontains=text)
        | Q(notes__icontains=text)
        | Q(model_label__icontains=text)
        | Q(pk__in=Run.objects.filter(owner__username__icontains=text).values("pk"))
        | Q(dataset_version__dataset__name__icontains=text)
        | Q(recipe_version__recipe__name__icontains=text)
        | Q(tags__contains=[text])
    )
    number = read_whole(text.removeprefix("#"))
    return matches if number is None else matches | Q(pk=number)


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
        path = TEXTS[key]
        if operator == "~":
            return Q(**{f"{path}__icontains": value.text})
        if value.is_none:
            return Q(**{f"{path}__isnull": True}) | Q(**{path: ""})
        return Q(**{f"{path}__iexact": value.text})
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
        near = difflib.get_close_matches(key, ABOUT, n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise QueryError(
            f"Unknown key {key!r}.{meant} Write settings as config.{key}, metrics as "
            f"{key}.last (or best, min, max, mean).",
            term.start,
            term.start + len(key),
        )
    return _metric(*parts, operator, value, term)


def _is(lookup: Lookup[Any]) -> Q:
    return Q(IsTrue(lookup))


def _allow(term: Compare, operators: tuple[str, ...]) -> None:
    if term.operator not in operators:
        raise QueryError(
            f"{term.key} takes {join_or(operators)}; got {term.operator}.",
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
    if value.is_none:
        return Q(IsNone(text))
    meant = value.text if value.is_quoted else WORDS.get(value.text.lower(), value.text)
    matches = _is(IExact(text, meant))
    if meant != value.text:
        matches |= _is(IExact(text, value.text))
    return (
        matches if number is None else matches | _is(Exact(SettingNumber(key), number))
    )


def _metric(metric: str, stat: Stat, operator: str, value: Value, term: Compare) -> Q:
    _allow(term, ("=", "!=", "<", "<=", ">", ">="))
    summaries = MetricSummary.objects.filter(run=OuterRef("pk"), name=metric)
    if operator == "=" and value.is_none:
        return ~Q(Exists(summaries))
    number = _read(read_number, term, value, f"{metric}.{stat}")
    try:
        expression: Combinable = stat_of(stat, metric)
    except ValueError as error:
        raise QueryError(str(error), term.start, term.end) from None
    return Q(Exists(summaries.filter(ORDERINGS[operator](expression, number))))


def _state(_operator: str, value: Value, term: Compare) -> Q:
    name = value.text.lower()
    if name == ACTIVE:
        return ~Q(state__in=ENDED)
    if name == "ended":
        return Q(state__in=ENDED)
    if name not in STATES:
        raise QueryError(
            f"Unknown state {value.text!r}. Use {join_or(STATES)}.",
            term.value_start,
            term.end,
        )
    return Q(state=name)


def _tag(operator: str, value: Value, _term: Compare) -> Q:
    if operator == "~":
        tagged = Run.objects.annotate(joined=JoinedTags()).filter(
            joined__icontains=value.text
        )
        return Q(pk__in=tagged.values("pk"))
    return Q(tags=[]) if value.is_none else Q(tags__contains=[value.text])


def _owner(_operator: str, value: Value, _term: Compare) -> Q:
    if value.is_none:
        return Q(owner=None)
    named = Q(owner__username__iexact=value.text)
    named |= Q(owner__display_name__iexact=value.text)
    # A subquery, so that `not` also finds runs without an owner.
    return Q(pk__in=Run.objects.filter(named).values("pk"))


def _dataset(operator: str, value: Value, _term: Compare) -> Q:
    """Runs that train or are evaluated on it."""
    path = "dataset_version__dataset__name"
    how = "icontains" if operator == "~" else "iexact"
    evaluated = EvaluationSet.objects.filter(**{f"{path}__{how}": value.text})
    return Q(**{f"{path}__{how}": value.text}) | Q(pk__in=evaluated.values("run"))


def _sweep(operator: str, value: Value, _term: Compare) -> Q:
    if operator != "~" and value.is_none:
        return Q(sweep=None)
    how = "icontains" if operator == "~" else "iexact"
    return Q(
        pk__in=Run.objects.filter(**{f"sweep__name__{how}": value.text}).values("pk")
    )


NAMED: Mapping[str, Callable[[str, Value, Compare], Q]] = MappingProxyType(
    {
        "state": _state,
        "tag": _tag,
        "owner": _owner,
        "dataset": _dataset,
        "sweep": _sweep,
    }
)


def join_or(words: Sequence[str]) -> str:
    """a, b or c"""
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def read_literal_number(text: str) -> float | None:
    """Read a finite number; None for any other text.

    >>> read_literal_number("1e-5"), read_literal_number("5%"), read_literal_number("a")
    (1e-05, 0.05, None)
    """
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    return value if math.isfinite(value) else None


def read_number(text: str, key: str) -> float:
    number = read_literal_number(text)
    if number is None and key == "duration":
        number = _seconds(text)
    if number is None:
        needed = (
            "a duration such as 90min, 2h or 1d" if key == "duration" else "a number"
        )
        raise UserError("runs.bad_query", f"{key} needs {needed}; got {text!r}.")
    return number


def read_moment(text: str, key: str) -> datetime:
    """Read 2026-11-01, 2026-11-01T12:30 (UTC), or an age: 7d."""
    seconds = _seconds(text)
    if seconds is not None and seconds < 3e9:
        return timezone.now() - timedelta(seconds=seconds)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(
            "runs.bad_query",
            f"{key} needs a date such as 2026-11-01, a time such as 2026-11-01T12:30 "
            f"(UTC), or an age such as 7d; got {text!r}.",
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _seconds(text: str) -> float | None:
    match = _SPAN.fullmatch(text)
    return float(match[1]) * UNITS[match[2]] if match else None
