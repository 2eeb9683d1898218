"""Prompt templates: Jinja with a row's columns as variables.

The sandbox keeps a template from Python's insides. What it doesn't keep is memory and
time, so expressions that can grow without bound are refused when a template is read,
and loops and the sizes of values are counted when it is rendered.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from string import ascii_uppercase
from typing import Any

from jinja2 import (
    StrictUndefined,
    TemplateError,
    TemplateSyntaxError,
    Undefined,
    nodes,
    pass_context,
)
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from dashboard.datasets.limits import MAX_LINE_CHARS
from dashboard.project.errors import UserError

MAX_TEMPLATE_CHARS = 4_000
MAX_TURNS = 10_000  # of all loops of a row
MAX_SECONDS = 2.0  # for a row
MAX_VALUE_CHARS = 2**19  # of a value that is computed with: to sort them takes 1 s
MAX_MADE_CHARS = 32 * MAX_VALUE_CHARS  # of all values that a row's expressions make
_ITEM_CHARS = 8  # what an item of a list counts for, beside its own characters
ALL_COLUMNS = "row"  # the variable for column names that are no identifiers
FILTERS = (
    *("abs", "capitalize", "d", "default", "dictsort", "first", "float", "int"),
    *("items", "last", "length", "list", "lower", "max", "min", "reverse"),
    *("sort", "string", "title", "trim", "unique", "upper", "wordcount"),
)
METHODS = frozenset(
    {
        *("capitalize", "endswith", "get", "items", "keys", "lower", "lstrip"),
        *("rstrip", "split", "splitlines", "startswith", "strip", "title", "upper"),
        *("removeprefix", "removesuffix", "values"),
    }
)
_ALLOWED = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const),
    *(nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword),
    *(nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.For, nodes.If, nodes.CondExpr),
    *(nodes.Filter, nodes.Test, nodes.Call, nodes.Compare, nodes.Operand),
    *(nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Concat, nodes.Add, nodes.Sub),
)
_MAX_ROUNDED = 30
_MAX_FILTERS = 50  # Jinja takes seconds to read a hundred, one after the other
_MAX_SUMS = 20  # each may double a text


class TemplateFault(UserError):
    """A template that cannot be used, or not with a row."""

    def __init__(self, text: str) -> None:
        super().__init__("datasets.bad_template", text)


class _Budget:
    """The work that is left for a row."""

    def __init__(self) -> None:
        self.num_turns = MAX_TURNS
        self.num_chars = MAX_MADE_CHARS
        self.until = time.monotonic() + MAX_SECONDS

    def spend(self) -> None:
        self.num_turns -= 1
        if self.num_turns < 0:
            raise TemplateFault(
                f"The template's loops take more than {MAX_TURNS:,} turns."
            )
        self.check_time()

    def check_time(self) -> None:
        if time.monotonic() > self.until:
            raise TemplateFault(
                f"The template takes longer than {MAX_SECONDS:g} seconds for a row."
            )


_budget: ContextVar[_Budget] = ContextVar("budget")


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    budget = _budget.get()
    for value in values:
        budget.spend()
        yield value


@pass_context  # so that it isn't applied to constants when a template is read
def _bounded(context: Context, value: Any) -> Any:
    """Check a value that is computed with."""
    _budget.get().check_time()
    _size(value, MAX_VALUE_CHARS)
    return value


@pass_context
def _made(context: Context, value: Any) -> Any:
    """Check a value that an expression made, which is computed with."""
    budget = _budget.get()
    budget.check_time()
    budget.num_chars -= _size(value, min(MAX_VALUE_CHARS, budget.num_chars))
    return value


def _size(value: Any, most: int) -> int:
    """Characters of all texts in a value; TemplateFault where there are more."""
    size, waiting = 0, [value]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, str):
            size += len(inner)
        elif isinstance(inner, list | tuple | Mapping):
            size += _ITEM_CHARS * len(inner)
            if size <= most:
                waiting += inner
                waiting += inner.values() if isinstance(inner, Mapping) else ()
        if size > most:
            raise TemplateFault(
                f"A filter, method or operator of the template gets more than {most:,} "
                "characters."
            )
    return size


def _letter(index: object) -> str:
    """Return the letter of an option by its index from 0."""
    if not isinstance(index, int) or not 0 <= index < len(ascii_uppercase):
        raise TemplateFault("The filter letter needs an index from 0 to 25.")
    return ascii_uppercase[index]


def _is_divisible(value: object, by: object = 2, *, rest: int = 0) -> bool:
    """Jinja's own tests take a text's % for its formatting."""
    if not isinstance(value, int) or not isinstance(by, int):
        raise TemplateFault("The tests odd, even and divisibleby need whole numbers.")
    return value % by == rest


def _join(values: Iterable[Any], separator: str = "") -> str:
    texts = [_as_text(value) for value in values]
    if len(separator) * len(texts) > MAX_LINE_CHARS:
        raise _too_long()
    return separator.join(texts)


def _replace(text: str, old: str, new: str) -> str:
    if text.count(old) * len(new) > MAX_LINE_CHARS:
        raise _too_long()
    return text.replace(old, new)


def _round(value: float, digits: int = 0) -> float:
    """Jinja's own takes minutes for a billion digits before the point."""
    return round(value, max(-_MAX_ROUNDED, min(digits, _MAX_ROUNDED)))


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _as_text(value: Any) -> Any:
    """Write what {{ }} writes: a text as it is, nothing for null, other values as
    JSON.
    """
    if value is None:
        return ""
    if isinstance(value, str | Undefined):
        return value
    _size(value, MAX_LINE_CHARS)
    return _as_json(value)


# Not for templates: put around their expressions when they are read.
_OWN_FILTERS = {"bounded": _bounded, "counted": _counted, "made": _made}


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        # It works constants out when a template is read, in the square of its length.
        optimized=False,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_as_text,
        autoescape=False,
    )
    made.globals.clear()
    filters = {name: made.filters[name] for name in FILTERS}
    made.filters = filters | {
        **_OWN_FILTERS,
        "join": _join,
        "letter": _letter,
        "replace": _replace,
        "round": _round,
        "tojson": _as_json,
    }
    made.tests.update(
        divisibleby=_is_divisible,
        even=_is_divisible,
        odd=lambda value: _is_divisible(value, rest=1),
    )
    return made


_JINJA = _environment()


class PromptTemplate:
    """A checked template.

    >>> PromptTemplate("{{ a }} + {{ b }}").render({"a": 1, "b": 2})
    '1 + 2'
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise TemplateFault(
                f"The template has {len(source):,} characters; the limit is "
                f"{MAX_TEMPLATE_CHARS:,}."
            )
        try:
            tree = _JINJA.parse(source.replace("\r\n", "\n"))
            _check(tree)
            tree = _Bounding().visit(tree)
            self.variables = find_undeclared_variables(tree) - {ALL_COLUMNS}
            self._template = _JINJA.from_string(tree)
        except TemplateSyntaxError as error:
            raise _fault(error.lineno, error.message or "syntax error") from None
        except (RecursionError, MemoryError):
            raise TemplateFault("The template is nested too deeply.") from None
        except SyntaxError as error:  # of the Python that Jinja makes of it
            raise _fault(None, error.msg) from None

    def render(self, values: Mapping[str, Any]) -> str:
        """Render the prompt of a row; TemplateFault says why there is none."""
        budget = _Budget()
        token = _budget.set(budget)
        pieces: list[str] = []
        num_chars = 0
        try:
            for piece in self._template.generate({ALL_COLUMNS: values, **values}):
                budget.check_time()
                num_chars += len(piece)
                if num_chars > MAX_LINE_CHARS:
                    raise _too_long()
                pieces.append(piece)
        except TemplateFault:
            raise
        except (TemplateError, ArithmeticError, LookupError, RecursionError) as error:
            raise _failed(error) from None
        except (AttributeError, TypeError, ValueError) as error:
            raise _failed(error) from None
        finally:
            _budget.reset(token)
        return "".join(pieces).strip("\n")


@lru_cache(64)
def read_template(source: str) -> PromptTemplate:
    return PromptTemplate(source)


def _check(tree: nodes.Template) -> None:
    """Only what reads columns: no macros, imports, assignments or multiplication."""
    num_sums = num_filters = 0
    for node in _all_nodes(tree):
        if not isinstance(node, _ALLOWED):
            kind = type(node).__name__.lower()
            raise _fault(node.lineno, f"prompt templates have no {kind}")
        if isinstance(node, nodes.Call) and (
            not isinstance(node.node, nodes.Getattr) or node.node.attr not in METHODS
        ):
            methods = ", ".join(sorted(METHODS))
            raise _fault(node.lineno, f"only these methods can be called: {methods}")
        if isinstance(node, nodes.For) and node.recursive:
            raise _fault(node.lineno, "prompt templates have no recursive loops")
        if isinstance(node, nodes.Filter) and (
            node.name not in _JINJA.filters or node.name in _OWN_FILTERS
        ):
            filters = ", ".join(sorted(_JINJA.filters.keys() - _OWN_FILTERS))
            raise _fault(node.lineno, f'no filter "{node.name}". Filters: {filters}')
        num_filters += isinstance(node, nodes.Filter)
        if num_filters > _MAX_FILTERS:
            raise _fault(node.lineno, f"more than {_MAX_FILTERS} filters")
        num_sums += len(node.nodes) if isinstance(node, nodes.Concat) else 0
        num_sums += isinstance(node, nodes.Add)
        if num_sums > _MAX_SUMS:
            raise _fault(node.lineno, f"more than {_MAX_SUMS} uses of ~ and +")


_READ = (nodes.Name, nodes.Getattr, nodes.Getitem)
_COMPUTING = (
    *(nodes.Filter, nodes.Test, nodes.Call, nodes.List, nodes.Tuple, nodes.Pair),
    *(nodes.Compare, nodes.Operand, nodes.Concat, nodes.Add, nodes.Keyword),
)


class _Bounding(NodeTransformer):
    """Counts the turns of loops, and bounds what expressions compute with."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        super().generic_visit(node, *args, **kwargs)
        if isinstance(node, nodes.For):
            assert isinstance(node.iter, nodes.Expr)
            is_read = isinstance(node.iter, _READ)
            values = node.iter if is_read else _around(node.iter)
            node.iter = _filtered(values, "counted")
        if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
            node.node.node = _around(node.node.node)
        elif isinstance(node, _COMPUTING) and getattr(node, "ctx", "load") == "load":
            for name, value in node.iter_fields():
                if isinstance(value, nodes.Expr):
                    setattr(node, name, _around(value))
                elif isinstance(value, list):
                    is_all = all(isinstance(argument, nodes.Expr) for argument in value)
                    setattr(
                        node, name, [_around(e) for e in value] if is_all else value
                    )
        if isinstance(node, nodes.Call):
            node.args = [_around(argument) for argument in node.args]
        return node


def _around(value: nodes.Expr) -> nodes.Expr:
    if isinstance(value, nodes.Const):
        return value
    is_slice = isinstance(value, nodes.Getitem) and isinstance(value.arg, nodes.Slice)
    is_read = isinstance(value, _READ) and not is_slice
    return _filtered(value, "bounded" if is_read else "made")


def _filtered(value: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)


def _all_nodes(node: nodes.Node) -> Iterator[nodes.Node]:
    yield node
    for child in node.iter_child_nodes():
        yield from _all_nodes(child)


def _fault(line: int | None, problem: str) -> TemplateFault:
    where = f"Line {line} of the template" if line else "The template"
    return TemplateFault(f"{where}: {problem.rstrip('.')}.")


def _failed(error: Exception) -> TemplateFault:
    return TemplateFault(
        f"The template cannot be filled: {str(error)[:300].rstrip('.')}."
    )


def _too_long() -> TemplateFault:
    return TemplateFault(
        f"The rendered prompt would have more than {MAX_LINE_CHARS:,} characters."
    )
