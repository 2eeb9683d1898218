"""What a notebook shows and loads: records as HTML tables, and optional libraries."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from typing import Any, TypeVar

T = TypeVar("T")
SHOWN_ROWS = 50
SHOWN_CHARS = 120


def import_library(*names: str) -> Any:
    """Import the libraries, and return the first.

    Raises:
        ImportError: one is not installed; the message tells how to install it.
    """
    try:
        libraries = [importlib.import_module(name) for name in names]
    except ModuleNotFoundError as error:
        if error.name not in names:
            raise
        raise ImportError(
            f"{error.name} is not installed. Run: pip install {' '.join(names)}",
            name=error.name,
        ) from None
    return libraries[0]


class Records(list[T]):
    """A list of records that a notebook shows as a table of their `COLUMNS`."""

    def _repr_html_(self) -> str:
        if not self:
            return "<p>No rows.</p>"
        columns: Sequence[str] = type(self[0]).COLUMNS  # type: ignore[attr-defined]  # each has it
        head = "".join(f"<th>{escape(column)}</th>" for column in columns)
        rows = "".join(
            row_html(
                cell_html(getattr(record, name), getattr(record, "address", ""))
                if name == columns[0]
                else cell_html(getattr(record, name))
                for name in columns
            )
            for record in self[:SHOWN_ROWS]
        )
        num_left = len(self) - SHOWN_ROWS
        more = f"<p>{num_left:,} more rows.</p>" if num_left > 0 else ""
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}"
        )


def row_html(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def cell_html(value: Any, address: str = "") -> str:
    """Escape a value, as a link if it has an address.

    No colours are set, so that the notebook's own, light or dark, hold.
    """
    text = _text_of(value)
    if len(text) > SHOWN_CHARS:
        text = f"{text[:SHOWN_CHARS]}…"
    link = f'<a href="{escape(address)}" target="_blank" rel="noopener">'
    return f"{link}{escape(text)}</a>" if address else escape(text)


def _text_of(value: Any) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M}"
        case list():
            return ", ".join(map(str, value)) or "–"
    return str(value)
