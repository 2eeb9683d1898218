"""What a task's configuration says of its own options, read from its source."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
import tokenize
from io import StringIO
from typing import Any

SIGNS = {"<=": "≤", ">=": "≥", "!=": "≠"}
LONGEST_BOUND = 80


def describe_options(config: type) -> list[dict[str, Any]]:
    """The settings that are one number, word or switch; size and seed come apart."""
    source = textwrap.dedent(inspect.getsource(config))
    comments, bounds = _comments(source), _bounds(source)
    return [
        {
            "name": field.name,
            "default": field.default,
            "help": comments.get(field.name, ""),
            "bounds": ", ".join(bounds.get(field.name, ())),
        }
        for field in dataclasses.fields(config)
        if field.name not in ("size", "seed")
        and isinstance(field.default, bool | int | float | str)
    ]


def _comments(source: str) -> dict[str, str]:
    """The remark behind each field, on any of its lines."""
    remarks = {
        token.start[0]: token.string.lstrip("# ").rstrip(". ")
        for token in tokenize.generate_tokens(StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    for field in _class(source).body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            lines = range(field.lineno, (field.end_lineno or field.lineno) + 1)
            said = " ".join(remarks[line] for line in lines if line in remarks)
            if said:
                found[field.target.id] = said[0].upper() + said[1:]
    return found


def _bounds(source: str) -> dict[str, list[str]]:
    """What is asserted of each field, where it is a comparison of plain values."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(_class(source)):
        if not isinstance(node, ast.Assert):
            continue
        for test in _parts(node.test):
            names = _fields_compared(test)
            text = ast.unparse(test).replace("self.", "")
            text = re.sub("[<>!]=", lambda sign: SIGNS[sign.group()], text)
            if len(text) <= LONGEST_BOUND:
                for name in names:
                    found.setdefault(name, []).append(text)
    return found


def _parts(test: ast.expr) -> list[ast.expr]:
    both = isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)
    return test.values if both else [test]  # type: ignore[attr-defined]  # a BoolOp has them


def _fields_compared(test: ast.expr) -> list[str]:
    """The fields of a comparison; none where it compares anything else."""
    if not isinstance(test, ast.Compare):
        return []
    if any(isinstance(sign, ast.Is | ast.IsNot) for sign in test.ops):
        return []
    sides = [test.left, *test.comparators]
    names = [side.attr for side in sides if isinstance(side, ast.Attribute)]
    plain = all(isinstance(side, ast.Attribute) or _is_literal(side) for side in sides)
    return names if plain else []


def _is_literal(side: ast.expr) -> bool:
    try:
        ast.literal_eval(side)
    except ValueError:
        return False
    return True


def _class(source: str) -> ast.ClassDef:
    (found,) = ast.parse(source).body
    assert isinstance(found, ast.ClassDef)
    return found
