"""Draws a report in a process of its own: bounded in time and memory, see apart.py."""

from __future__ import annotations

from collections.abc import Iterator

from dashboard.apart import serve
from dashboard.reports.pdf.formulas import use_cache
from dashboard.reports.pdf.items import Panel, Paper, Table, Text
from dashboard.reports.pdf.panels import draw_panel
from dashboard.reports.pdf.prose import draw_prose
from dashboard.reports.pdf.sheet import QUIET, SMALL_SIZE, Sheet

MAX_NAMED = 20  # characters that no font has


def draw_paper(paper: Paper) -> bytes:
    use_cache(paper.cache)
    sheet = Sheet(_characters(paper), title=paper.title)
    sheet.use(style="B", size=18)
    sheet.paragraph(paper.title)
    sheet.use(size=SMALL_SIZE, color=QUIET)
    sheet.paragraph(paper.facts)
    sheet.ln(4)
    for part in paper.parts:
        if isinstance(part, Panel):
            draw_panel(sheet, part, paper.colours)
        else:
            draw_prose(sheet, part.markdown)
    _say_what_is_missing(sheet)
    return bytes(sheet.output())


def _say_what_is_missing(sheet: Sheet) -> None:
    if not sheet.missing:
        return
    codes = [f"U+{ord(c):04X}" for c in sorted(sheet.missing)]
    some = ", ".join(codes[:MAX_NAMED]) + " …" * (len(codes) > MAX_NAMED)
    sheet.ln(4)
    sheet.use(size=SMALL_SIZE, color=QUIET)
    sheet.paragraph(
        f"{len(codes)} different characters stand as � here: this server has no font "
        f"with {some}. Install one (Debian: fonts-noto-core, fonts-noto-cjk) and "
        "export the report anew; the HTML file shows them by its reader's fonts."
    )


def _characters(paper: Paper) -> set[str]:
    found = set(paper.title)
    for part in paper.parts:
        if not isinstance(part, Panel):
            found.update(part.markdown)
            continue
        found.update(part.name)
        for item in part.items:
            if isinstance(item, Text):
                found.update(item.name, item.text)
            elif isinstance(item, Table):
                found.update(*item.head, *(cell for row in item.rows for cell in row))
            else:
                found.update(item.drawing.y_title, *(words for _, words in item.legend))
    return found


def _answer(paper: Paper) -> Iterator[bytes]:
    yield draw_paper(paper)


if __name__ == "__main__":
    serve(_answer)
