"""Keys whose values are names: of a state, a tag, people, datasets, sweeps."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from django.db.models import (
    DurationField,
    ExpressionWrapper,
    F,
    FloatField,
    Func,
    Q,
    TextField,
)
from django.db.models.expressions import Combinable
from django.db.models.functions import Cast, Coalesce, Now, NullIf

from dashboard.runs.models import ENDED, EvaluationSet, Run, RunState

# The keys of the filter language, and what each is.

CONFIG = "config."


def elapsed_seconds() -> Combinable:
    """From its start to its end, or to now."""
    took = ExpressionWrapper(
        Coalesce("finished_at", Now()) - F("started_at"), output_field=DurationField()
    )
    return Func(
        took, template="extract(epoch FROM %(expressions)s)", output_field=FloatField()
    )


def share_done() -> Combinable:
    done = Cast("last_step", FloatField())
    return done / NullIf(Cast("num_steps", FloatField()), 0.0)


TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "name": "name",
        "notes": "notes",
        "model": "model_label",
        "reward": "recipe_version__recipe__name",
        "worker": "worker",
    }
)
NUMBERS: Mapping[str, Any] = MappingProxyType(
    {
        "id": F("pk"),
        "step": F("last_step"),
        "steps": F("num_steps"),
        "progress": share_done(),
        "duration": elapsed_seconds(),
    }
)
MOMENTS: Mapping[str, str] = MappingProxyType(
    {"created": "created_at", "started": "started_at", "finished": "finished_at"}
)
# Key, what it is; in the order in which they are offered.
ABOUT: Mapping[str, str] = MappingProxyType(
    {
        "name": "name of the run",
        "state": "queued, running, finished …; active, ended",
        "tag": "has the tag",
        "owner": "who launched it",
        "model": "model it starts from",
        "dataset": "trains or is evaluated on it",
        "reward": "reward recipe",
        "sweep": "launched together under this name",
        "notes": "text of its notes",
        "id": "number of the run",
        "step": "last step done",
        "steps": "steps asked for",
        "progress": "share of its steps done, 0 to 1",
        "duration": "90min, 2h, 1d",
        "created": "2026-11-01, or how long ago: 7d",
        "started": "2026-11-01, or how long ago: 7d",
        "finished": "2026-11-01, or how long ago: 7d",
        "worker": "that held it last",
        "starred": "by you",
        "locked": "kept from changes",
        "archived": "put out of the list",
        "trashed": "in the trash",
    }
)


def explain_unknown(key: str) -> str:
    near = difflib.get_close_matches(key, ABOUT, n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    return (
        f"There is no key {key!r}.{meant} A setting is written config.{key}, a metric "
        f"{key}.last (or best, min, max, mean)."
    )


# What a query of the run list says, as a tree; and how words are quoted in it.

FLAGS = ("starred", "locked", "archived", "trashed")
QUOTED = r'"(?:[^"\\]|\\.)*"'


class QueryError(ValueError):
    """The sentence is for the user; `start` and `end` are the place in the query."""

    def __init__(self, sentence: str, start: int, end: int) -> None:
        super().__init__(sentence)
        self.start, self.end = start, max(end, start + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Text(Term):
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Flag(Term):
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    text: str
    is_quoted: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Compare(Term):
    key: str
    operator: str  # one of OPERATORS, but for ":"
    values: tuple[Value, ...]
    value_start: int = 0


@dataclass(frozen=True, slots=True)
class Not:
    node: Node


@dataclass(frozen=True, slots=True)
class And:
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    nodes: tuple[Node, ...]


Node = Term | Not | And | Or
EVERYTHING = And(())


def walk(node: Node) -> Iterator[Term]:
    """Its terms, left to right."""
    if isinstance(node, Term):
        yield node
    elif isinstance(node, Not):
        yield from walk(node.node)
    else:
        for one in node.nodes:
            yield from walk(one)


def quote(text: str) -> str:
    """As a query writes it, so that it is read as this text and nothing else."""
    is_plain = re.fullmatch(r"[\w./@+#][\w./@+#-]*", text)
    is_word = text.lower() in ("and", "or", "not", "none", *FLAGS)
    if is_plain and not is_word:
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def unquote(word: str) -> str:
    """A word of bare and quoted parts, as it is meant."""
    parts = re.split(rf"({QUOTED})", word)
    return "".join(_unquoted(part) if part.startswith('"') else part for part in parts)


def _unquoted(part: str) -> str:
    return re.sub(r"\\(.)", r"\1", part[1:-1], flags=re.DOTALL)


def join_or(words: Sequence[str]) -> str:
    """a, b or c"""
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


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
        return Q(sweep=None)
    how = "icontains" if operator == "~" else "iexact"
    named = Run.objects.filter(**{f"sweep__name__{how}": value.text})
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
