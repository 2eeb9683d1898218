"""Eighteen values, as JSON, that no field means; some are no JSON at all."""

import json
from collections.abc import Iterator
from typing import Any

ODD_VALUES: dict[str, str] = {
    "nothing": "",
    "null": "null",
    "true": "true",
    "zero": "0",
    "a number of bytes": "50000000000",  # bytes(n) would be 50 GB
    "5,000 digits": "9" * 5_000,
    "beyond floats": "1e400",
    "no number": "NaN",
    "empty": '""',
    "text": '"x"',
    "a NUL": r'"a\u0000b"',
    "a lone surrogate": r'"\ud800"',
    "not ASCII": '"é"',
    "1 MB": '"' + "x" * 1_000_000 + '"',
    "a list": '[1, null, "x"]',
    "2,000 lists deep": "[" * 2_000 + "]" * 2_000,
    "100,000 lists deep": "[" * 100_000,
    "an object": '{"a": {"id": 1}}',
}
_MARK = "@put here@"


def with_odd_values(tree: Any) -> Iterator[tuple[str, str]]:
    """The tree as JSON, with each of its parts in turn replaced by each odd value."""
    for path in _paths(tree):
        marked = json.dumps(_replaced(tree, path))
        for name, odd in ODD_VALUES.items():
            where = ".".join(map(str, path)) or "all of it"
            yield f"{where}: {name}", marked.replace(json.dumps(_MARK), odd)


def _paths(tree: Any) -> Iterator[tuple[Any, ...]]:
    yield ()
    parts = tree.items() if isinstance(tree, dict) else ()
    if isinstance(tree, list):
        parts = enumerate(tree)
    for key, part in parts:
        for path in _paths(part):
            yield key, *path


def _replaced(tree: Any, path: tuple[Any, ...]) -> Any:
    if not path:
        return _MARK
    copy = tree.copy()
    copy[path[0]] = _replaced(tree[path[0]], path[1:])
    return copy
