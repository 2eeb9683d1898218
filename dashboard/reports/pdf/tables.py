"""Tables on paper. Their rows go over pages, their head is on each."""

from __future__ import annotations

from collections.abc import Sequence

from fpdf.enums import TableBordersLayout
from fpdf.fonts import FontFace

from dashboard.reports.pdf.sheet import QUIET, RULE, SMALL_SIZE, SUNKEN, Sheet

MAX_CELL = 600  # characters: a row is no longer than a page
MAX_COLUMNS = 12


def draw_table(
    sheet: Sheet, head: Sequence[str], rows: Sequence[Sequence[str]], *, num_words: int
) -> None:
    """The first columns hold words, the others numbers."""
    shown = min(len(head), MAX_COLUMNS)
    aligned = tuple("LEFT" if i < num_words else "RIGHT" for i in range(shown))
    sheet.use(size=SMALL_SIZE)
    sheet.set_draw_color(*RULE)
    sheet.set_fill_color(255, 255, 255)  # rows take over whatever was set
    with sheet.table(
        width=sheet.epw,
        align="LEFT",
        text_align=aligned,
        col_widths=_widths(head, rows, shown),
        line_height=SMALL_SIZE * 0.5,
        padding=(0.8, 1.2),
        borders_layout=TableBordersLayout.HORIZONTAL_LINES,
        headings_style=FontFace(emphasis="B", color=QUIET, fill_color=SUNKEN),
        first_row_as_headings=True,
    ) as table:
        for row in (head, *rows):
            drawn = table.row()
            for cell in row[:shown]:
                drawn.cell(sheet.clean(_cut(cell)))
    if shown < len(head):
        sheet.paragraph(f"{shown} of {len(head)} columns are shown.")
    sheet.ln(2)


def _cut(text: str) -> str:
    if len(text) <= MAX_CELL:
        return text
    return f"{text[:MAX_CELL]} … {MAX_CELL} of {len(text):,} characters"


def _widths(
    head: Sequence[str], rows: Sequence[Sequence[str]], shown: int
) -> tuple[float, ...]:
    """By the longest of a column, within reason."""
    longest = [
        max((len(row[i]) for row in (head, *rows) if i < len(row)), default=1)
        for i in range(shown)
    ]
    return tuple(float(min(max(length, 6), 36)) for length in longest)
