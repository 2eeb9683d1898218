"""Paper with margins, page numbers and fonts; text goes on it through `clean`."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection

from fpdf import FPDF
from fpdf.enums import XPos, YPos

from dashboard.reports.pdf.fonts import (
    FILES,
    MISSING,
    SANS,
    find_further,
    own_fonts,
)

MARGIN = 18.0  # mm
TEXT_SIZE, SMALL_SIZE, MONO_SIZE = 10.0, 8.0, 8.5
LEADING = 0.5  # mm of line per point of size
INK, QUIET, RULE, SUNKEN = (29, 39, 51), (84, 96, 110), (200, 206, 213), (240, 243, 246)


class Sheet(FPDF):
    def __init__(self, characters: Collection[str], *, title: str) -> None:
        super().__init__(format="A4", unit="mm")
        self.set_margins(MARGIN, MARGIN)
        self.set_auto_page_break(True, margin=MARGIN)
        self.set_title(title)
        self.set_creator("Cohort")
        for (family, style), name in FILES.items():
            self.add_font(family, style, own_fonts() / name)
        further, self.missing = find_further(characters)
        for i, font in enumerate(further):
            self.add_font(f"further{i}", "", font.path)
        self.set_fallback_fonts(
            [SANS, *(f"further{i}" for i in range(len(further)))], exact_match=False
        )
        # It takes twice the time, which only some writing needs.
        self.set_text_shaping(needs_shaping(characters))
        self.add_page()

    def footer(self) -> None:
        self.set_y(-MARGIN + 6)
        self.use(size=SMALL_SIZE, color=QUIET)
        self.cell(0, 4, f"{self.page_no()}", align="R")

    def use(
        self,
        *,
        family: str = SANS,
        style: str = "",
        size: float = TEXT_SIZE,
        color: tuple[int, int, int] = INK,
    ) -> None:
        if (family, style) not in FILES:
            style = style.replace("I", "")  # there is no oblique one of this family
        self.set_font(family, style, size)
        self.set_text_color(*color)

    def clean(self, text: str) -> str:
        """What no font has stands as �; tabs as spaces; nothing unprintable."""
        expanded = text.expandtabs(4)
        return "".join(
            c if c == "\n" else self._clean(c) for c in expanded if c != "\r"
        )

    def _clean(self, character: str) -> str:
        if character in self.missing:
            return MISSING
        return character if character.isprintable() else ""

    def paragraph(self, text: str, *, fill: bool = False) -> None:
        """In the font in use, over as many pages as it takes."""
        self.multi_cell(
            0,
            self.font_size_pt * LEADING,
            self.clean(text),
            align="L",
            fill=fill,
            new_x=XPos.LMARGIN,
            new_y=YPos.NEXT,
        )

    def room(self, height: float) -> None:
        """A new page where less than this is left, in mm."""
        if self.get_y() + height > self.h - MARGIN:
            self.add_page()


def needs_shaping(characters: Collection[str]) -> bool:
    """From right to left, or of letters that are drawn by what is beside them.

    >>> needs_shaping("abc δ я 中"), needs_shaping("שלום"), needs_shaping("हिन्दी")
    (False, True, True)
    """
    return any(
        unicodedata.bidirectional(c) in ("R", "AL")
        or (unicodedata.category(c) in ("Mn", "Mc") and c > "\u036f")
        for c in characters
    )
