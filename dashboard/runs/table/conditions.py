"""A query's tree as one condition of SQL: values are parameters, never text of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import and_, or_
from types import MappingProxyType
from typing import Any

from django.db.models import Exists, F, OuterRef, Q
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
from dashboard.runs.models import (
    MetricSummary,
    Run,
    RunStar,
)
from dashboard.runs.table.keys import (
    CONFIG,
    MOMENTS,
    NUMBERS,
    TEXTS,
    explain_unknown,
)
from dashboard.runs.table.literals import read_literal_number, read_moment, read_number
from dashboard.runs.table.named import NAMED, is_none
from dashboard.runs.table.sql import (
    IsTrue,
    SettingNumber,
    SettingText,
    Stat,
    split_metric,
    stat_of,
)
from dashboard.runs.table.tree import (
    And,
    Compare,
    Flag,
    Node,
    Not,
    Or,
    QueryError,
    Text,
    Value,
    join_or,
    walk,
)

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
