"""Markdown on paper: a token after another, as the parser gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from markdown_it.token import Token

from dashboard.reports.markdown import heading_level, parse_prose
from dashboard.reports.pdf.fonts import MONO, SANS
from dashboard.reports.pdf.formulas import draw_formula
from dashboard.reports.pdf.sheet import LEADING, MONO_SIZE, SUNKEN, TEXT_SIZE, Sheet
from dashboard.reports.pdf.tables import draw_table

HEADING_SIZES = {2: 14.0, 3: 12.0, 4: 11.0}
INDENT = 6.0  # mm
DEEPEST = 12
BLOCKS_OF_MATH = ("math_block", "math_block_label", "amsmath")


@dataclass
class Place:
    """Where in the text the pen is."""

    size: float = TEXT_SIZE
    style: set[str] = field(default_factory=set)
    link: str = ""
    lists: list[int | None] = field(default_factory=list)  # the next number, or a dot
    depth: int = 0
    is_tight: bool = False


def draw_prose(sheet: Sheet, markdown: str) -> None:
    tokens, place, at = parse_prose(markdown), Place(), 0
    while at < len(tokens):
        token = tokens[at]
        if token.type == "table_open":
            at = _draw_table(sheet, tokens, at)
        else:
            _draw(sheet, token, place)
        at += 1
    sheet.set_left_margin(_margin(sheet, 0))
    sheet.set_x(sheet.l_margin)


def _draw(sheet: Sheet, token: Token, place: Place) -> None:
    kind = token.type
    if kind == "heading_open":
        place.size = HEADING_SIZES.get(heading_level(token), TEXT_SIZE)
        place.style.add("B")
        sheet.room(place.size * 2)
        sheet.ln(3)
    elif kind == "heading_close":
        sheet.ln(place.size * LEADING + 1.5)
        place.size, place.style = TEXT_SIZE, place.style - {"B"}
    elif kind in ("bullet_list_open", "ordered_list_open"):
        first = int(token.attrGet("start") or 1) if kind[0] == "o" else None
        place.lists.append(first)
        _indent(sheet, place, 1)
    elif kind in ("bullet_list_close", "ordered_list_close"):
        place.lists.pop()
        _indent(sheet, place, -1)
    elif kind == "list_item_open":
        _draw_marker(sheet, place)
    elif kind in ("blockquote_open", "blockquote_close"):
        _indent(sheet, place, 1 if kind == "blockquote_open" else -1)
    elif kind == "paragraph_close":
        sheet.ln(place.size * LEADING + (0.5 if token.hidden else 2.2))
    elif kind == "inline":
        _draw_inline(sheet, token.children or [], place)
    elif kind in ("fence", "code_block"):
        draw_code(sheet, token.content.rstrip("\n"))
    elif kind in BLOCKS_OF_MATH:
        _draw_math(sheet, token.content, place)
    elif kind == "hr":
        sheet.ln(2)
        sheet.line(sheet.l_margin, sheet.y, sheet.w - sheet.r_margin, sheet.y)
        sheet.ln(3)


def _indent(sheet: Sheet, place: Place, by: int) -> None:
    place.depth += by
    sheet.set_left_margin(_margin(sheet, min(place.depth, DEEPEST)))
    sheet.set_x(sheet.l_margin)


def _margin(sheet: Sheet, depth: int) -> float:
    return float(sheet.r_margin + depth * INDENT)


def _draw_marker(sheet: Sheet, place: Place) -> None:
    number = place.lists[-1]
    marker = "•" if number is None else f"{number}."
    if number is not None:
        place.lists[-1] = number + 1
    sheet.use(size=place.size)
    sheet.room(place.size * LEADING)
    sheet.set_x(sheet.l_margin - INDENT)
    sheet.cell(INDENT - 1.5, place.size * LEADING, marker, align="R")
    sheet.set_x(sheet.l_margin)


def _draw_inline(sheet: Sheet, tokens: Sequence[Token], place: Place) -> None:
    for token in tokens:
        if token.type == "text":
            _write(sheet, token.content, place)
        elif token.type == "code_inline":
            _write(sheet, token.content, place, family=MONO)
        elif token.type in ("softbreak", "hardbreak"):
            sheet.ln(place.size * LEADING)
        elif token.type in ("strong_open", "em_open"):
            place.style.add("B" if token.type == "strong_open" else "I")
        elif token.type in ("strong_close", "em_close"):
            place.style.discard("B" if token.type == "strong_close" else "I")
        elif token.type == "link_open":
            place.link = str(token.attrGet("href"))
        elif token.type == "link_close":
            place.link = ""
        elif token.type == "math_inline":
            if not draw_formula(sheet, token.content, size=place.size, apart=False):
                _write(sheet, token.content, place, family=MONO)
        elif token.type == "math_inline_double":
            sheet.ln(place.size * LEADING)
            _draw_math(sheet, token.content, place)


def _write(sheet: Sheet, text: str, place: Place, *, family: str = SANS) -> None:
    size = place.size * (0.9 if family == MONO else 1)
    style = "".join(sorted(place.style))
    sheet.use(family=family, style=style, size=size)
    if place.link:
        sheet.set_text_color(11, 92, 173)
    sheet.write(place.size * LEADING, sheet.clean(text), link=place.link)


def _draw_math(sheet: Sheet, source: str, place: Place) -> None:
    if not draw_formula(sheet, source.strip(), size=place.size * 1.1, apart=True):
        draw_code(sheet, source.strip())


def draw_code(sheet: Sheet, text: str) -> None:
    sheet.use(family=MONO, size=MONO_SIZE)
    sheet.set_fill_color(*SUNKEN)
    sheet.paragraph(text or " ", fill=True)
    sheet.ln(2)


def _draw_table(sheet: Sheet, tokens: Sequence[Token], at: int) -> int:
    """The place of the table's last token."""
    rows: list[list[str]] = []
    while tokens[at].type != "table_close":
        if tokens[at].type == "tr_open":
            rows.append([])
        elif tokens[at].type == "inline":
            rows[-1].append(_plain(tokens[at]))
        at += 1
    draw_table(sheet, rows[0], rows[1:], num_words=len(rows[0]))
    return at


def _plain(token: Token) -> str:
    return "".join(
        child.content or (" " if child.type.endswith("break") else "")
        for child in token.children or []
    )
