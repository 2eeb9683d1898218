"""A parser as a row of the tests, and what any of them may be given."""

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

ANY_TEXT = st.text(st.characters(), max_size=80)  # lone surrogates among them
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(2**63), 2**31])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | ANY_TEXT,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4)
    ),
    max_leaves=12,
)


# Beyond what recursion may, with an end and without one.
DEEP = st.builds(
    lambda depth, closed: "[" * depth + "]" * depth * closed,
    st.integers(1, 3_000),
    st.booleans(),
)


def of(alphabet: str, *words: str) -> st.SearchStrategy[str]:
    """Texts of a language's own signs and words, and of anything else."""
    pieces = st.sampled_from([*alphabet, *words]) | st.text(max_size=3)
    return st.lists(pieces, max_size=30).map("".join)


def shaped(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with these fields, of the right kind or of any, or without them."""
    return st.fixed_dictionaries(
        {}, optional={name: kind | JSON for name, kind in fields.items()}
    )


def dumped(tree: Any) -> str:
    with contextlib.suppress(ValueError):  # a number that is too long to write
        return json.dumps(tree)
    return "[]"


def spoilt(sound: bytes) -> st.SearchStrategy[bytes]:
    """Some bytes of a sound text changed, or its end cut off."""
    return st.builds(
        lambda at, by, end: (sound[:at] + by + sound[at + len(by) :])[:end],
        st.integers(0, len(sound)),
        st.binary(max_size=8),
        st.integers(0, 2 * len(sound)),
    )


TREES = JSON.map(dumped) | DEEP | st.text(max_size=30)

BODIES = TREES.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(
    max_size=60
)


@contextlib.contextmanager
def folder_with(**files: bytes) -> Iterator[Path]:
    """A folder; `config__json` is its config.json."""
    with tempfile.TemporaryDirectory() as name:
        for file, content in files.items():
            (Path(name) / file.replace("__", ".")).write_bytes(content)
        yield Path(name)


@dataclass(frozen=True, slots=True)
class Parser:
    name: str
    inputs: st.SearchStrategy[Any]
    check: Callable[[Any], None]
    modules: tuple[str, ...]  # that it reads with
