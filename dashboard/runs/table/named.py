"""Keys whose values are names: of a state, a tag, people, datasets, sweeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from django.db.models import F, Func, Q, TextField
from django.db.models.expressions import Combinable

from dashboard.runs.models import ENDED, EvaluationSet, Run, RunState
from dashboard.runs.table.tree import Compare, QueryError, Value, join_or

ACTIVE = "active"  # every state that has not ended
STATES = (ACTIVE, "ended", *RunState.values)


def is_none(value: Value) -> bool:
    return value.text.lower() == "none" and not value.is_quoted


def _state(_operator: str, value: Value, term: Compare) -> Q:
    name = value.text.lower()
    if name == ACTIVE:
        return ~Q(state__in=ENDED)
    if name == "ended":
        return Q(state__in=ENDED)
    if name not in STATES:
        raise QueryError(
            f"There is no state {value.text!r}. A state is {join_or(STATES)}.",
            term.value_start,
            term.end,
        )
    return Q(state=name)


def _tag(operator: str, value: Value, _term: Compare) -> Q:
    if operator == "~":
        # Array elements joined by what no tag holds.
        return Q(
            pk__in=Run.objects.annotate(joined=_joined_tags())
            .filter(joined__icontains=value.text)
            .values("pk")
        )
    if is_none(value):
        return Q(tags=[])
    return Q(tags__contains=[value.text])


def _joined_tags() -> Combinable:
    template = "array_to_string(%(expressions)s, chr(10))"
    return Func(F("tags"), template=template, output_field=TextField())


def _owner(_operator: str, value: Value, _term: Compare) -> Q:
    if is_none(value):
        return Q(owner=None)
    named = Q(owner__username__iexact=value.text)
    named |= Q(owner__display_name__iexact=value.text)
    # A subquery, so that `not` finds runs whose owner is gone too.
    return Q(pk__in=Run.objects.filter(named).values("pk"))


def _dataset(operator: str, value: Value, _term: Compare) -> Q:
    """To train on it, or to be evaluated on it."""
    path = "dataset_version__dataset__name"
    how = "icontains" if operator == "~" else "iexact"
    evaluated = EvaluationSet.objects.filter(**{f"{path}__{how}": value.text})
    return Q(**{f"{path}__{how}": value.text}) | Q(pk__in=evaluated.values("run"))


def _sweep(operator: str, value: Value, _term: Compare) -> Q:
    if operator != "~" and is_none(value):
        return Q(group=None)
    how = "icontains" if operator == "~" else "iexact"
    named = Run.objects.filter(**{f"group__name__{how}": value.text})
    return Q(pk__in=named.values("pk"))


NAMED: Mapping[str, Callable[[str, Value, Compare], Q]] = MappingProxyType(
    {
        "state": _state,
        "tag": _tag,
        "owner": _owner,
        "dataset": _dataset,
        "sweep": _sweep,
    }
)
